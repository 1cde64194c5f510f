// As echo.ts, but reads each reply while it is sampled, and prints a line for each piece of it.
//
//     node build/examples/stream.js RUN/.milepost/guests.json

import { readFileSync } from "node:fs";
import { Guest, type Invitation } from "../src/index.js";

const invitation = JSON.parse(readFileSync(process.argv[2] ?? "guests.json", "utf8")) as Invitation;

const guest = new Guest(
  async (episode) => {
    const reading = episode.stream(episode.prompt.messages);
    let piece = await reading.next();
    while (!piece.done) {
      console.log(piece.value.content);
      piece = await reading.next();
    }
    const { content } = piece.value.message;
    console.log(`whole: ${content}`);
    episode.report({ reward: content === episode.prompt.label ? 1 : 0 });
  },
  invitation,
  { name: "typescript", episodes: 1 },
);
await guest.run();
