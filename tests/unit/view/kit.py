"""A folder of runs to look at: real files, a real archive, a real tokenizer, hostile words."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
import xxhash
from unit.archive.kit import author, judged
from unit.report.kit import write_run

from milepost.actors.archive.layout import (
    Trained,
    TrainedBody,
    Verdict,
    arrived,
    key_of,
)
from milepost.actors.archive.writer import ArchiveWriter, Said
from milepost.actors.seal import sealed
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.configs.recipes.tiny.tokenizer import train_tokenizer, write_tokenizer
from milepost.launch.cache import with_checkpoint
from milepost.messages.bulk import Bulk
from milepost.messages.shared import FinishReason, SamplingParams, Status, VersionSpan
from milepost.messages.trajectory import Certificate, Provenance, Trajectory, TurnBoundary

T, U, R, S = Provenance.TEMPLATE, Provenance.INPUT, Provenance.TOOL, Provenance.SAMPLED
EVIL = "<script>document.title='owned'</script>\x1b[2J\u202e<img src=x onerror=alert(1)>"
SIZE = 380
Part = tuple[Provenance, str, int]
"""Who said it, what, and under which version."""


@cache
def _tokenizer() -> tokenizers.Tokenizer:
    texts = ["".join(text for _, text, _ in talk("zoe", "owl", 0)) for _ in range(40)]
    return train_tokenizer(texts, ["lookup", "zoe", "mia", "owl"], size=SIZE)


def talk(who: str, answer: str, version: int) -> list[Part]:
    """One episode: a question, two calls of a tool, an answer."""
    call = '{{"name": "lookup", "arguments": {{"name": "{}", "field": "{}"}}}}'
    parts: list[Part] = [
        (T, "<|im_start|>system\n", 0),
        (U, "Answer with one word. Use the tool lookup(name, field).", 0),
        (T, "<|im_end|>\n<|im_start|>user\n", 0),
        (U, f"What is the pet of the friend of {who}?", 0),
        (T, "<|im_end|>\n<|im_start|>assistant\n", 0),
        (S, f"<tool_call>\n{call.format(who, 'friend')}\n</tool_call><|im_end|>", version),
        (T, "\n<|im_start|>user\n<tool_response>\n", 0),
        (R, "mia", 0),
        (T, "\n</tool_response><|im_end|>\n<|im_start|>assistant\n", 0),
        (S, f"<tool_call>\n{call.format('mia', 'pet')}\n</tool_call><|im_end|>", version + 1),
        (T, "\n<|im_start|>user\n<tool_response>\n", 0),
        (R, f"{answer}\nnaïve 世界 🙂", 0),
        (T, "\n</tool_response><|im_end|>\n<|im_start|>assistant\n", 0),
        (S, f"It is an {answer}, 世界 🙂.<|im_end|>", version + 2),
    ]
    return parts


@dataclass
class Shelf:
    """A folder of runs; the one called `lookup-1` has an archive."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "lookup-1"

    @property
    def model(self) -> Path:
        return self.folder.parent / "model"

    def write(self) -> Shelf:
        """The run that is there, its model, and its archive of three groups."""
        write_run(self.run)
        self.model.mkdir()
        write_tokenizer(self.model, _tokenizer(), context_tokens_max=512)
        topology = load_topology("lookup")
        assert topology.model is not None
        resolved = with_checkpoint(topology, topology.model, self.model)
        (self.run / "topology.toml").write_text(dump_topology(resolved))
        facts = {"started_at": 1_790_000_000.0}
        (self.run / "versions.json").write_text(json.dumps(facts))
        self._write_archive()
        return self

    def copy(self, name: str, **summary: Any) -> Path:
        """The same run once more, ended otherwise."""
        folder = self.folder / name
        shutil.copytree(self.run, folder, ignore=shutil.ignore_patterns("archive"))
        told = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(told | summary))
        return folder

    def _write_archive(self) -> None:
        buffer = ArchiveWriter(author(self.run), clock=iter_clock())
        trainer = ArchiveWriter(author(self.run, "trainer-0"), clock=iter_clock())
        for step in range(3):
            group = [self.row(f"g{step}.{member}", step, float(member)) for member in range(4)]
            buffer.write([came(each) for each in group])
            buffer.write([judged(*group)])
            trainer.write([trained(each, step + 2) for each in group])
        odd = [
            self.row(
                "odd.0", 3, 0.25, mismatch="assistant_text at segment 9: canonical 'a', row 'b'"
            ),
            self.row("odd.1", 3, 0.5, status=Status.TRUNCATED, parts=hostile(), said=EVIL),
        ]
        buffer.write([came(odd[0]), came(odd[1])])
        buffer.write([judged(*odd, verdict=Verdict.DROPPED, reason=f"stale {EVIL}")])
        buffer.close()
        trainer.close()

    def row(
        self,
        name: str,
        version: int,
        reward: float,
        *,
        parts: Sequence[Part] | None = None,
        status: Status = Status.COMPLETED,
        mismatch: str = "",
        said: str = "",
    ) -> Trajectory:
        """A row of these parts, as a session seals it."""
        return make_row(
            self.model,
            name,
            talk("zoe", "owl", version) if parts is None else parts,
            reward=reward,
            status=status,
            mismatch=mismatch,
            said=said,
        )


def hostile() -> list[Part]:
    """What a model under training, or a tool, may well say."""
    return [(T, "<|im_start|>user\n", 0), (R, EVIL, 0), (S, f"{EVIL}<|im_end|>", 3)]


def make_row(
    model: Path,
    name: str,
    parts: Iterable[Part],
    *,
    reward: float,
    status: Status = Status.COMPLETED,
    mismatch: str = "",
    said: str = "",
) -> Trajectory:
    """A sealed row, T tokens long, of these parts; what it says is `conversation(said)`."""
    tokenizer = load_tokenizer(model)
    random = Random(name)
    ids, provenance = array("i"), bytearray()
    turns, spans = [], []
    for who, text, version in parts:
        start = len(ids)
        ids.extend(tokenizer.encode(text).tolist())
        provenance += bytes([who]) * (len(ids) - start)
        if who is S:
            prefix = xxhash.xxh3_128_hexdigest(ids.tobytes())
            spans.append(VersionSpan(start=start, end=len(ids), version=version))
            turns.append(
                TurnBoundary(
                    prompt_end=start,
                    end=len(ids),
                    finish_reason=FinishReason.STOP,
                    prefix_hash=prefix,
                    engine="engine-0",
                )
            )
    sampled = bytes(who == S for who in provenance)
    logprobs = array("f", [-random.expovariate(2) if s else 0.0 for s in sampled])
    told = conversation(said)
    row = Trajectory(
        trajectory_id=name,
        group_id=name.rpartition(".")[0],
        prompt_id=f"train-{name.rpartition('.')[0]}",
        status=status,
        reward=reward,
        token_ids=Bulk("int32", (len(ids),), ids.tobytes()),
        loss_mask=Bulk("uint8", (len(ids),), sampled),
        logprobs=Bulk("float32", (len(ids),), logprobs.tobytes()),
        provenance=Bulk("uint8", (len(ids),), bytes(provenance)),
        spans=tuple(spans),
        turns=tuple(turns),
        certificate=Certificate(
            tokenizer_hash=tokenizer.content_hash,
            template_hash="cd" * 16,
            family="qwen3",
            sampling=SamplingParams(),
            canonical_mismatch=mismatch or None,
            mismatch_kinds=("assistant_text",) if mismatch else (),
            conversation_hash=xxhash.xxh3_128_hexdigest(told),
        ),
        num_sampled_tokens=sum(sampled),
        metrics={"solved": reward, "turns": float(len(turns))},
        metadata={"seconds": 1.5},
        conversation=Bulk("uint8", (len(told),), told),
    )
    return sealed(row)


def came(row: Trajectory) -> Said:
    """A trajectory that came."""
    return arrived((row,), "session-0")


def conversation(said: str = "") -> bytes:
    """What a row says, as a session writes it down; `said` stands in place of most messages."""
    arguments = '{"name": "zoe", "field": "friend"}'
    call = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": said or "What is the pet of the friend of zoe?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": said or "mia", "tool_call_id": "1"},
        {"role": "assistant", "content": said or "It is an owl."},
    ]
    return json.dumps({"messages": messages}).encode()


def trained(row: Trajectory, step: int) -> Said:
    """What a trainer made of it: log-probs a little off, one of them by much."""
    random = Random(row.trajectory_id)
    engine = array("f", bytes(row.logprobs.data))
    places = [at for at, mask in enumerate(bytes(row.loss_mask.data)) if mask]
    values = array("f", [engine[at] + random.gauss(0, 0.03) for at in places])
    values[len(values) // 2] -= 1.5
    head = Trained(
        key=key_of(row),
        trajectory_id=row.trajectory_id,
        row=0,
        step=step,
        advantage=row.reward - 1.5,
        staleness=step - min(span.version for span in row.spans),
        group_rewards=(0.0, 1.0, 2.0, 3.0),
        contracts={"C1": "passed", "C3": "passed", "C4": "passed", "seal": "passed"},
    )
    return head, TrainedBody(logprobs=Bulk("float32", (len(values),), values.tobytes()))


def iter_clock() -> Any:
    """A clock that goes on by a second with each look."""
    return iter(float(1_790_000_000 + at) for at in range(10_000)).__next__
