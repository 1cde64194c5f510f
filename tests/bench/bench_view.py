"""How long pages of `milepost view` take: a run of 100,000 trajectories beside one of 1,000.

    pytest tests/bench/bench_view.py -s

CPU time of the whole server and its client, best of several, from the request to the last byte.
Lists are read from an index alone; the reader is timed on a row of 65,536 tokens in a real archive.
"""

from __future__ import annotations

import time
from typing import Final

import aiohttp
import pytest
from unit.archive.kit import author, fill_index, judged
from unit.view.kit import EVIL, Part, R, S, Shelf, T, came, make_row, trained

from milepost.actors.archive.writer import ArchiveWriter
from milepost.launch.view.runs import Runs
from milepost.launch.view.server import ViewServer

SMALL, LARGE, REPEATS = 1_000, 100_000, 5
SECOND_MS: Final = 1000.0
pytestmark = pytest.mark.timeout(600)
PAGES: Final = {
    "runs": "",
    "run": "runs/{}",
    "step": "runs/{}/steps/3",
    "group": "runs/{}/trajectories?group=g000012",
    "newest": "runs/{}/trajectories",
    "highest reward": "runs/{}/trajectories?order=-reward",
    "last page": "runs/{}/trajectories?page=2000",
    "status, reward, staleness": (
        "runs/{}/trajectories?status=truncated&reward_min=1&staleness_min=2"
    ),
    "not canonical": "runs/{}/trajectories?mismatch=yes",
    "text, common": "runs/{}/trajectories?text=answer",
    "text, rare": "runs/{}/trajectories?text=number+777+of",
    "text, two letters": "runs/{}/trajectories?text=wh",
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    shelf = Shelf(tmp_path_factory.mktemp("view") / "runs").write()
    for name, count in (("small", SMALL), ("large", LARGE)):
        fill_index(shelf.copy(name), count)
    buffer = ArchiveWriter(author(long := shelf.copy("long")))
    trainer = ArchiveWriter(author(long, "trainer-0"))
    parts: list[Part] = [(T, "<|im_start|>", 0), (R, EVIL * 900, 0), (S, "owl " * 9000, 1)]
    row = make_row(shelf.model, "long.0", parts, reward=1.0)
    assert row.token_ids.shape[0] >= 1 << 16
    buffer.write([came(row), judged(row)])
    trainer.write([trained(row, 3)])
    buffer.close()
    trainer.close()
    return shelf


async def cpu_ms(client: aiohttp.ClientSession, address: str) -> tuple[float, int]:
    """Least CPU time of one page, and its bytes; the first look warms up."""
    times = []
    for _ in range(REPEATS + 1):
        began_s = time.process_time()
        async with client.get(address) as response:
            body = await response.read()
            assert response.status == 200, body
        times.append((time.process_time() - began_s) * 1000)
    return min(times[1:]), len(body)


async def test_pages_of_a_hundred_times_as_many_trajectories(shelf: Shelf) -> None:
    print(f"\n{'page':<28}{'1,000':>10}{'100,000':>10}{'ratio':>8}{'KiB':>7}")
    async with ViewServer(Runs(shelf.folder)) as server, aiohttp.ClientSession() as client:
        for name, path in PAGES.items():
            small, _ = await cpu_ms(client, server.address + path.format("small"))
            large, size = await cpu_ms(client, server.address + path.format("large"))
            ratio = large / small
            print(f"{name:<28}{small:>7.1f} ms{large:>7.1f} ms{ratio:>8.1f}{size / 1024:>7.0f}")
            assert large < SECOND_MS
        for page in ("", "?from=30000&colour=difference"):
            address = f"{server.address}runs/long/trajectories/long.0{page}"
            spent, size = await cpu_ms(client, address)
            print(f"a row of 65,536 tokens {page[:11]:<15}{spent:>7.1f} ms{size / 1024:>15.0f}")
            assert spent < SECOND_MS
