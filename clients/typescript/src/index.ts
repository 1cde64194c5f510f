export { ChatError, Episode, Guest } from "./guest.js";
export type { Agent, ChatMessage, ChatOptions, Goodbye, Part, Reply, Report } from "./guest.js";
export { Link, Unanswered } from "./link.js";
export type { Answer, Invitation } from "./link.js";
