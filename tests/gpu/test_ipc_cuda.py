"""Versions that stay on one GPU: two processes, one allocation, and either of them killed.

    pytest tests/gpu/test_ipc_cuda.py -m gpu -s

A trainer and engines in processes of their own on cuda:0, a policy of 0.27 billion parameters in
bfloat16 (0.54 GB); this process is the publisher.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from gpu.ipc_scene import TRAINER, Moved, Scene, move, scene_of, topology
from unit.trainer.kit import TEMPLATE, TOKENIZER, model_classes

from milepost.actors.weights.cuda_ipc.layout import num_bytes_of
from milepost.messages.engine import AbortEpoch, CopyBucket, EpochAnswer
from milepost.messages.publisher import BucketReady
from milepost.messages.trainer import SendBytes, VersionSent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda:0"
BUCKET_BYTES = 128 << 20
VERSIONS = 5
GOOD = EpochAnswer(version=1, ok=True)
FREED_BYTES = 1 << 30
"""Less than an engine has: two sets of weights, and the context."""
SLACK_BYTES = 64 << 20
"""What the driver itself may hold more or less of after a test."""


def write_policy(folder: Path) -> Path:
    """Half a gigabyte in bfloat16, as a new model is drawn: large values would overflow a loss."""
    config_class, model_class = model_classes("qwen3")
    config = config_class(
        vocab_size=65536, hidden_size=1024, intermediate_size=3072, num_hidden_layers=16,
        num_attention_heads=16, num_key_value_heads=8, head_dim=64, max_position_embeddings=128,
        tie_word_embeddings=True, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model_class(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(TOKENIZER, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy"))


def free_bytes() -> int:
    return torch.cuda.mem_get_info(0)[0]


async def memory_is_back(before: int) -> None:
    """The driver takes the memory of a killed process back a moment after the process is gone."""
    deadline_s = time.monotonic() + 30.0
    while (free := await asyncio.to_thread(free_bytes)) < before - SLACK_BYTES:
        assert time.monotonic() < deadline_s, f"{(before - free) >> 20} MiB are still held"


async def measured(tmp_path: Path, policy: Path, way: str) -> tuple[list[Moved], Scene, int]:
    """Some versions, each compared tensor by tensor, moved one way."""
    wanted = topology(
        policy,
        device=DEVICE,
        engines=1,
        cuda_ipc="always" if way == "handle" else "never",
        bucket_bytes_max=BUCKET_BYTES,
    )
    async with scene_of(tmp_path / way, wanted) as scene:
        moves = []
        for number in range(VERSIONS):
            moves.append(
                await scene.publish("engine-0", number, randomize=number == 0, compare=True)
            )
            scene.say_published(number)
        ready, buckets = await scene.version(0)
        assert (ready.memory is not None) == (way == "handle")
        assert all(bool(bucket.tensors) == (way == "bytes") for bucket in buckets)
        size = sum(num_bytes_of(spec) for spec in ready.tensors)
        if way == "handle":
            handles = {(await scene.version(number))[0].memory for number in range(VERSIONS)}
            assert len(handles) == 2, "every version after the second uses memory again"
    return moves, scene, size


async def test_a_version_is_the_same_by_handle_as_by_bytes_and_sooner(
    tmp_path: Path, policy: Path
) -> None:
    """Equal digests, tensor by tensor, also over weights that were random; both ways in one run."""
    before = free_bytes()
    told = {}
    for way in ("bytes", "handle"):
        moves, scene, size = await measured(tmp_path, policy, way)
        await memory_is_back(before)
        move_s = statistics.median(each.move_s for each in moves[1:])
        pause_s = max(each.pause_s for each in moves)
        export_s = statistics.median(scene.metrics("perf/export_time")[1:])
        told[way] = export_s, move_s
        sys.stdout.write(
            f"\n{size / 1e9:.2f} GB by {way}: export {export_s * 1e3:.0f} ms (first "
            f"{scene.metrics('perf/export_time')[0] * 1e3:.0f}), move {move_s * 1e3:.0f} ms "
            f"(first {moves[0].move_s * 1e3:.0f}), longest pause {pause_s * 1e3:.3f} ms; "
            f"{scene.facts[TRAINER]['cuda_ipc']}, {scene.facts['engine-0']['cuda_ipc']}"
        )
    exports, ways = zip(*(told[way] for way in ("bytes", "handle")), strict=True)
    sys.stdout.write(
        f"\nby handle, export is {exports[0] / exports[1]:.1f} and move {ways[0] / ways[1]:.1f} "
        "times as fast"
    )
    assert ways[1] < ways[0]


async def test_an_engine_killed_while_it_copies_holds_nobody_up(
    tmp_path: Path, policy: Path
) -> None:
    """Another engine takes the version, the next one is exported, and no memory is lost."""
    before = free_bytes()
    wanted = topology(
        policy, device=DEVICE, engines=2, cuda_ipc="always", bucket_bytes_max=BUCKET_BYTES
    )
    async with scene_of(tmp_path, wanted) as scene:
        for engine in ("engine-0", "engine-1"):
            await scene.publish(engine, 0)
        scene.say_published(0)
        ready, buckets = await scene.version(1)
        await scene.prepare("engine-1", ready)
        assert await scene.ask("engine-1", move(ready, buckets[0])) == GOOD
        asked = scene.question("engine-1", move(ready, buckets[1]))
        with_both = free_bytes()
        await scene.kill("engine-1")
        asked.add_done_callback(lambda done: done.cancelled() or done.exception())
        await scene.publish("engine-0", 1, compare=True)
        scene.say_published(1)
        await scene.publish("engine-0", 2, compare=True)
        await memory_is_back(with_both + FREED_BYTES)
    await memory_is_back(before)


async def test_a_trainer_killed_while_it_is_copied_from_leaves_the_old_version_serving(
    tmp_path: Path, policy: Path
) -> None:
    """The engine neither hangs nor serves a part: what it can still read, or not, is dropped."""
    before = free_bytes()
    wanted = topology(
        policy, device=DEVICE, engines=1, cuda_ipc="always", bucket_bytes_max=BUCKET_BYTES
    )
    async with scene_of(tmp_path, wanted) as scene:
        await scene.publish("engine-0", 0)
        scene.say_published(0)
        first, _ = await scene.version(0)
        ready, buckets = await scene.version(1)
        await scene.prepare("engine-0", ready)
        assert await scene.ask("engine-0", move(ready, buckets[0])) == GOOD
        asked = scene.question("engine-0", move(ready, buckets[1]))
        await scene.kill(TRAINER)
        answers = [(await asked).message]
        answers += [await scene.ask("engine-0", move(ready, each)) for each in buckets[2:]]
        said = [answer.reason or "copied" for answer in answers if isinstance(answer, EpochAnswer)]
        assert len(said) == len(answers), answers
        sys.stdout.write(f"\nbuckets after the trainer's death: {said}")
        assert await scene.digests("engine-0", first) == (0, first.tensor_digests)
        abort = AbortEpoch(version=1, reason="the trainer is dead")
        assert await scene.ask("engine-0", abort) == GOOD
        assert await scene.digests("engine-0", first) == (0, first.tensor_digests)
    await memory_is_back(before)


async def test_what_cannot_be_read_is_refused_by_name_and_bytes_are_given_instead(
    tmp_path: Path, policy: Path
) -> None:
    """A foreign GPU, a handle that is none, a tensor outside: then the trainer sends bytes."""
    wanted = topology(
        policy, device=DEVICE, engines=1, cuda_ipc="auto", bucket_bytes_max=BUCKET_BYTES
    )
    async with scene_of(tmp_path, wanted) as scene:
        ready, buckets = await scene.version(0)
        memory = ready.memory
        assert memory is not None
        assert memory.device == await scene.prepare("engine-0", ready)
        good = buckets[0]

        async def refused(**changes: object) -> str:
            message = CopyBucket(
                version=0,
                index=0,
                names=good.names,
                offsets=good.offsets,
                memory=msgspec.structs.replace(memory, **changes),
            )
            await scene.prepare("engine-0", ready)
            answer = await scene.ask("engine-0", message)
            assert isinstance(answer, EpochAnswer)
            assert not answer.ok
            return answer.reason

        assert "the version lies on GPU other" in await refused(device="other")
        assert "a handle has 64 bytes, not 3" in await refused(handle=b"abc")
        assert "the memory has 1000" in await refused(num_bytes=1000)
        said = await refused(handle=bytes(64))
        assert "the trainer's memory cannot be opened: cudaIpcOpenMemHandle" in said, said
        sys.stdout.write(f"\na handle of zeros: {said}")

        number = len(scene.of(BucketReady))
        asked = scene.buses["publisher"].ask(TRAINER, SendBytes(version=0), deadline_s=60.0)
        assert (await asked).message == VersionSent(version=0, ok=True)
        await scene.until(lambda: len(scene.of(BucketReady)) == number + len(buckets))
        by_bytes = {each.index: each for each in scene.of(BucketReady)[number:]}
        await scene.prepare("engine-0", ready, randomize=True)
        for index, bucket in sorted(by_bytes.items()):
            message = move(msgspec.structs.replace(ready, memory=None), bucket)
            assert await scene.ask("engine-0", message) == EpochAnswer(version=0, ok=True), index
        gone = scene.buses["publisher"].ask(TRAINER, SendBytes(version=99), deadline_s=60.0)
        answer = (await gone).message
        assert isinstance(answer, VersionSent)
        assert "version 99 is not on the GPU" in answer.reason
