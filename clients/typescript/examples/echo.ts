// Joins a job, asks the model once in each episode, and rewards the answer that is the label. Ends
// with the job: with 0 when its work was done.
//
//     node build/examples/echo.js RUN/.milepost/guests.json [EPISODES]

import { readFileSync } from "node:fs";
import { Guest, type Invitation } from "../src/index.js";

const invitation = JSON.parse(readFileSync(process.argv[2] ?? "guests.json", "utf8")) as Invitation;

const guest = new Guest(
  async (episode) => {
    const { messages, label } = episode.prompt;
    const reply = await episode.chat(messages);
    const solved = reply.message.content === label ? 1 : 0;
    episode.report({ reward: solved, metrics: { solved } });
  },
  invitation,
  { name: "typescript", episodes: Number(process.argv[3] ?? 4) },
);
process.on("SIGINT", () => guest.leave("stopped by SIGINT"));
await guest.run();
console.log(JSON.stringify(guest.counts));
if (guest.goodbye && guest.goodbye.status !== "done") {
  console.error(`the run ended (${guest.goodbye.status}): ${guest.goodbye.reason}`);
  process.exitCode = 1;
}
