// One link to the guests' door: questions go out, each gets one answer. docs/agent-protocol.md.

import { randomBytes, randomInt } from "node:crypto";
import { Encoder, decode, encode } from "@msgpack/msgpack";
import { Dealer } from "zeromq";

/** Messages are msgpack maps: fields by name. */
export type Fields = Record<string, unknown>;

/** What the door answered. */
export interface Answer {
  type: string;
  body: Fields;
}

/** The run's `guests.json`: where the door is, and the keys that open it. */
export interface Invitation {
  endpoint: string;
  run_id: string;
  protocol: string;
  server_public_key: string;
  public_key: string;
  secret_key: string;
}

/** Nobody answered in time, or the door was started again and knows nothing of the question. */
export class Unanswered extends Error {}

const MAJOR = 1;
const MINOR = 0;
const PROBE_MS = 1000;
const CLOSE_MS = 500;
const HIGH_WATER_MARK = 1024;
/** The sizes that the door takes; a larger frame would have it disconnect. */
const FRAME_BYTES_MAX = 1 << 25;

enum Kind {
  Ask = 1,
  Reply = 2,
  Refused = 3,
  Ack = 4,
  Probe = 5,
  Skip = 6,
}

interface Question {
  sequence: number;
  frames: [Uint8Array, Uint8Array];
  until: number;
  resolve: (answer: Answer) => void;
  reject: (error: Error) => void;
}

const header = new Encoder({ useBigInt64: true });
const fields = new Encoder({ ignoreUndefined: true });

export class Link {
  private readonly socket: Dealer;
  private readonly name = `guest-${randomBytes(6).toString("hex")}`;
  private readonly questions = new Map<number, Question>();
  private readonly unacked: Question[] = [];
  private nextId = randomInt(2 ** 20) * 2 ** 32 + 1;
  private nextSequence = 1;
  private received = 0;
  private hasGap = false;
  private doorIncarnation = -1;
  private timer: NodeJS.Timeout | undefined;
  private closed = false;
  // ZeroMQ takes one message of a socket at a time.
  private sending: Promise<void> = Promise.resolve();
  private readonly reading: Promise<void>;

  constructor(private readonly invitation: Invitation) {
    const major = Number(invitation.protocol.split(".")[0]);
    if (major !== MAJOR) {
      throw new Error(`the run speaks protocol ${invitation.protocol}, this client ${MAJOR}.${MINOR}`);
    }
    this.socket = new Dealer({
      routingId: `${this.name}/0/${randomBytes(4).toString("hex")}`,
      linger: CLOSE_MS,
      sendHighWaterMark: HIGH_WATER_MARK,
      receiveHighWaterMark: HIGH_WATER_MARK,
      maxMessageSize: FRAME_BYTES_MAX,
    });
    if (invitation.endpoint.startsWith("tcp://")) {
      this.socket.curveServerKey = invitation.server_public_key;
      this.socket.curvePublicKey = invitation.public_key;
      this.socket.curveSecretKey = invitation.secret_key;
    }
    this.socket.connect(invitation.endpoint);
    this.reading = this.read();
    this.timer = setInterval(() => this.tick(), PROBE_MS);
  }

  /** Ask; rejects with `Unanswered` after `deadlineMs`. */
  ask(type: string, body: Fields, deadlineMs: number): Promise<Answer> {
    if (this.closed) return Promise.reject(new Unanswered("the link is closed"));
    const id = this.nextId++;
    const sequence = this.nextSequence++;
    const frames: [Uint8Array, Uint8Array] = [
      header.encode([
        MAJOR, MINOR, type, BigInt(id), 0, this.name, 0, sequence,
        this.invitation.run_id, BigInt(Date.now()) * 1_000_000n,
      ]),
      fields.encode(body),
    ];
    return new Promise((resolve, reject) => {
      const question = { sequence, frames, until: Date.now() + deadlineMs, resolve, reject };
      this.questions.set(id, question);
      this.unacked.push(question);
      this.put(question);
    });
  }

  /** Say nothing more; questions that are open fail. */
  async close(): Promise<void> {
    this.closed = true;
    clearInterval(this.timer);
    this.failAll("the link was closed");
    await this.sending;
    this.socket.close();
    await this.reading;
  }

  private put(question: Question): void {
    this.send(Kind.Ask, Math.max(1, question.until - Date.now()), question.frames);
  }

  /** Every frame says where this side stands: what it may send again, what it has received. */
  private send(kind: Kind, argument: number, frames: Uint8Array[] = []): void {
    const base = this.unacked[0]?.sequence ?? this.nextSequence;
    const stand = [kind, 0, base, this.nextSequence - 1, this.received, this.received, argument];
    const message = [encode(stand), ...frames];
    this.sending = this.sending.then(() => this.socket.send(message)).catch((error: unknown) => {
      if (!this.closed) this.failAll(`sending failed: ${String(error)}`);
    });
  }

  private async read(): Promise<void> {
    try {
      for await (const frames of this.socket) this.arrived(frames);
    } catch (error) {
      if (!this.closed) this.failAll(`the socket failed: ${String(error)}`);
    }
  }

  private arrived(frames: Uint8Array[]): void {
    const stand = decode(frames[0]!) as number[];
    const [kind, incarnation, base, last, , taken, argument] = stand as
      [Kind, number, number, number, number, number, number];
    if (incarnation !== this.doorIncarnation && !this.doorIs(incarnation)) return;
    if (base > this.received + 1) this.received = base - 1;
    if (kind === Kind.Reply || kind === Kind.Refused) {
      this.answered(kind, frames, taken);
      return;
    }
    if (kind === Kind.Skip && argument === this.received + 1) this.received = argument;
    this.acknowledged(taken);
    if (kind === Kind.Ack && argument > 0) {
      // The door misses what lies between what it has and `argument`.
      for (const question of this.unacked) {
        if (question.sequence > stand[4]! && question.sequence <= argument) this.put(question);
      }
    }
    this.miss(last > this.received);
  }

  private answered(kind: Kind, frames: Uint8Array[], taken: number): void {
    const head = decode(frames[1]!) as [number, number, string, number, number, string, number, number];
    const [, , type, , cause, , , sequence] = head;
    if (sequence !== this.received + 1) {
      if (sequence > this.received) this.miss(true);
      return;
    }
    this.received = sequence;
    this.hasGap = false;
    this.acknowledged(taken);
    this.send(Kind.Ack, 0);
    const question = this.questions.get(cause);
    if (question === undefined) return;
    this.questions.delete(cause);
    const body = decode(frames[2]!) as Fields;
    if (kind === Kind.Refused) question.reject(new Error(`not understood: ${String(body.reason)}`));
    else question.resolve({ type, body });
  }

  private acknowledged(taken: number): void {
    while (this.unacked.length > 0 && this.unacked[0]!.sequence <= taken) this.unacked.shift();
  }

  private miss(isMissing: boolean): void {
    if (isMissing && !this.hasGap) this.send(Kind.Probe, 1);
    this.hasGap = isMissing;
  }

  /** False when this is old news of a door that is gone. */
  private doorIs(incarnation: number): boolean {
    if (incarnation < this.doorIncarnation) return false;
    const isAnother = this.doorIncarnation >= 0;
    this.doorIncarnation = incarnation;
    if (isAnother) {
      this.received = 0;
      this.failAll("the door was started again, and knows nothing of this question");
    }
    return true;
  }

  private tick(): void {
    const now = Date.now();
    for (const [id, question] of this.questions) {
      if (question.until > now) continue;
      this.questions.delete(id);
      question.reject(new Unanswered(`no answer from ${this.invitation.endpoint} in time`));
      // It counts as taken, so that the door does not wait for its number.
      if (this.unacked.includes(question)) this.send(Kind.Skip, question.sequence, []);
    }
    if (this.questions.size > 0 || this.unacked.length > 0) {
      this.send(Kind.Probe, this.hasGap ? 1 : 0);
    }
  }

  private failAll(reason: string): void {
    const open = [...this.questions.values()];
    this.questions.clear();
    this.unacked.length = 0;
    for (const question of open) question.reject(new Unanswered(reason));
  }
}
