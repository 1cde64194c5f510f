// An agent that joins a running job: takes episodes, talks to the model, reports, leaves.

import { Link, Unanswered, type Answer, type Fields, type Invitation } from "./link.js";

/** A chat message in the OpenAI shape. */
export interface ChatMessage {
  role: string;
  content?: string | null;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  [key: string]: unknown;
}

export interface Reply {
  message: ChatMessage;
  finish_reason: "stop" | "length";
  usage: { prompt_tokens: number; completion_tokens: number; cached_tokens: number };
  versions: number[];
  /** Number of this reply in its session. */
  generation: number;
  /** Bound of the run that cut it off; empty where none did, or your own `tokens_max`. */
  limit: string;
}

interface Given {
  episode_id: string;
  trajectory_id: string;
  attempt: number;
  prompt: { prompt_id: string; messages: ChatMessage[]; label: unknown;
            metadata: Fields; tools: Fields[] };
  limits: { turns_max: number; seconds_max: number; reply_tokens_max: number; tokens_max: number };
  purpose: "train" | "evaluate";
  seed: number;
}

/** Why a chat gave no reply. `limit`: name of a bound of the episode, else empty. */
export class ChatError extends Error {
  constructor(readonly kind: string, reason: string, readonly limit: string) {
    super(`${kind}: ${reason}`);
  }
}

export interface Report {
  reward?: number;
  metrics?: Record<string, number>;
  info?: Fields;
}

/** What a reply that is still being sampled has grown by. */
export interface Part {
  content: string;
  reasoning: string;
  tool_calls: NonNullable<ChatMessage["tool_calls"]>;
}

/** How the run ended; status `done`: its work was done. */
export interface Goodbye {
  status: string;
  reason: string;
}

const MARGIN_MS = 5000;
const JOIN_MS = 20_000;
const REPORT_MS = 30_000;
const LEAVE_MS = 5000;

/** One episode, as the agent sees it. */
export class Episode {
  /** Aborts when the run stops the episode, or a bound of time ends it. */
  readonly signal: AbortSignal;
  result: Report = {};
  /** Numbers of the replies that came, in their session. */
  readonly received: number[] = [];
  private chats = 0;

  constructor(readonly given: Given, private readonly link: Link, private readonly token: string,
              private readonly controller: AbortController) {
    this.signal = controller.signal;
  }

  get prompt(): Given["prompt"] { return this.given.prompt; }
  get limits(): Given["limits"] { return this.given.limits; }

  /** The model's next reply; `messages` is the whole conversation so far. Throws `ChatError`. */
  async chat(messages: ChatMessage[], options: ChatOptions = {}): Promise<Reply> {
    return this.take(await this.ask(messages, options, false, ++this.chats));
  }

  /** The same while it is sampled: its parts as they come, last the whole reply, which counts. */
  async *stream(messages: ChatMessage[], options: ChatOptions = {}): AsyncGenerator<Part, Reply> {
    const number = ++this.chats;
    const more = { token: this.token, episode_id: this.given.episode_id, number };
    let answer = await this.ask(messages, options, true, number);
    try {
      while (answer.type === "ReplyPart") {
        yield answer.body as unknown as Part;
        answer = await this.link.ask("MoreOfReply", more, this.patienceMs);
      }
      return this.take(answer);
    } finally {
      // Left at a part: an engine would sample on for nobody.
      if (answer.type === "ReplyPart") {
        void this.link.ask("GiveUpChat", more, REPORT_MS).catch(unlessUnanswered);
      }
    }
  }

  private take(answer: Answer): Reply {
    const got = reply(answer);
    if (got.generation) this.received.push(got.generation);
    return got;
  }

  private ask(messages: ChatMessage[], options: ChatOptions, stream: boolean,
              number: number): Promise<Answer> {
    return this.link.ask("GuestChat", {
      token: this.token, episode_id: this.given.episode_id, messages, stream, number,
      tools: options.tools, tokens_max: options.tokensMax,
    }, this.patienceMs);
  }

  private get patienceMs(): number { return this.given.limits.seconds_max * 1000 + MARGIN_MS; }

  /** The result so far; the last one counts, also when the time of the episode is up. */
  report(result: Report): void {
    this.result = { ...this.result, ...result };
    void this.link.ask("ReportEpisode", {
      token: this.token, episode_id: this.given.episode_id, is_final: false, ...this.result,
    }, REPORT_MS).catch(unlessUnanswered);
  }

  /** Called by the guest, not by agents. */
  stop(reason: string): void { this.controller.abort(new Error(reason)); }
}

function reply({ type, body }: Answer): Reply {
  if (type === "ChatReply") return body as unknown as Reply;
  const kind = type === "ChatRefused" ? String(body.kind) : "closed";
  throw new ChatError(kind, String(body.reason), String(body.limit ?? ""));
}

export interface ChatOptions {
  tools?: Fields[];
  tokensMax?: number;
}

export type Agent = (episode: Episode) => Promise<void>;

/** One agent, joined to one job. `await guest.run()` returns after `leave`, or when the job ends. */
export class Guest {
  /** Episodes by what became of them. */
  readonly counts = { reported: 0, failed: 0, cancelled: 0 };
  /** What the run said of its end; undefined while it goes on without us. */
  goodbye: Goodbye | undefined;
  private readonly link: Link;
  private readonly running = new Map<string, Episode>();
  private leaving = "";
  private wake: () => void = () => {};

  constructor(private readonly agent: Agent, invitation: Invitation,
              private readonly options: { name: string; episodes: number }) {
    this.link = new Link(invitation);
  }

  /** Take nothing new, finish what runs, then go. */
  leave(reason: string): void {
    this.leaving ||= reason;
    this.wake();
  }

  async run(): Promise<void> {
    try {
      while (!(await this.stay(await this.join())));
    } finally {
      await this.link.close();
    }
  }

  private async join(): Promise<Fields> {
    const { name, episodes } = this.options;
    const { type, body } = await this.link.ask(
      "JoinRun", { name, episodes_max: episodes, client: "milepost-typescript/0.1" }, JOIN_MS);
    if (type !== "RunJoined") throw new Error(`the run refuses this guest: ${String(body.reason)}`);
    return body;
  }

  /** Run episodes until we leave (true), or the door knows us no more (false). */
  private async stay(joined: Fields): Promise<boolean> {
    const token = String(joined.token);
    const deadlineMs = 2000 * Number(joined.heartbeat_s) + MARGIN_MS;
    while (!(this.leaving && this.running.size === 0)) {
      const asked = this.link.ask("TakeEpisodes", {
        token, running: [...this.running.keys()],
        episodes_max: this.leaving ? 0 : this.options.episodes,
      }, deadlineMs).catch(unlessUnanswered);
      const changed = new Promise<"changed">((resolve) => { this.wake = () => resolve("changed"); });
      const news: Answer | "changed" | undefined = await Promise.race([asked, changed]);
      if (news === "changed") continue;
      if (news?.type !== "EpisodesGiven") {
        for (const episode of this.running.values()) episode.stop("the door has forgotten this guest");
        this.running.clear();
        return Boolean(this.leaving);
      }
      this.begin(token, news.body);
      if (news.body.goodbye) {
        this.goodbye ??= news.body.goodbye as Goodbye;
        this.leaving ||= "the run ends";
      }
    }
    await this.link.ask("LeaveRun", { token, reason: this.leaving }, LEAVE_MS).catch(unlessUnanswered);
    return true;
  }

  private begin(token: string, news: Fields): void {
    for (const given of news.episodes as Given[]) {
      if (this.running.has(given.episode_id)) continue;
      const episode = new Episode(given, this.link, token, new AbortController());
      this.running.set(given.episode_id, episode);
      void this.runOne(token, episode);
    }
    for (const [id, reason] of Object.entries(news.cancelled as Record<string, string>)) {
      this.running.get(id)?.stop(reason);
      this.over(id, "cancelled");
    }
  }

  private async runOne(token: string, episode: Episode): Promise<void> {
    const id = episode.given.episode_id;
    let error = "", stopped = "";
    try {
      await this.agent(episode);
    } catch (thrown) {
      if (thrown instanceof ChatError && thrown.kind === "closed") {
        // The run stopped it, and the chat heard of it first: nobody's failure. The door is told,
        // which may not know it: it would give the same episode again.
        stopped = thrown.message;
      } else {
        // A bound that ended it is no failure: the run knows it, and the last report counts.
        const isBound = thrown instanceof ChatError && thrown.limit !== "";
        error = isBound ? "" : String(thrown);
      }
    }
    if (this.running.get(id) !== episode) return;
    try {
      await this.link.ask("ReportEpisode", {
        token, episode_id: id, error, stopped, received: episode.received, ...episode.result,
      }, REPORT_MS);
      this.over(id, stopped ? "cancelled" : error ? "failed" : "reported");
    } catch (lost) {
      this.running.delete(id);
      unlessUnanswered(lost);
    } finally {
      if (this.leaving) this.wake();
    }
  }

  private over(id: string, how: keyof Guest["counts"]): void {
    if (this.running.delete(id)) this.counts[how] += 1;
    if (this.leaving) this.wake();
  }
}

/** That nobody answered is told by what follows; anything else is a fault. */
function unlessUnanswered(error: unknown): undefined {
  if (!(error instanceof Unanswered)) throw error;
  return undefined;
}
