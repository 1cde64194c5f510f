"""`milepost view` over HTTP: who is let in, what may be asked, and what comes back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import pytest
from unit.archive.kit import SQLITE_PAGE, broken
from unit.view.kit import EVIL, Shelf, make_row
from yarl import URL

from milepost.launch.view.runs import Runs
from milepost.launch.view.server import REQUESTS_MAX, ViewServer
from milepost.launch.view.speller import Question, Spellers
from milepost.messages.shared import Status

pytestmark = pytest.mark.timeout(120)
VIEW: Final = "import sys; from milepost.launch.cli import main; sys.exit(main())"
PAGES: Final = (
    "",
    "runs/lookup-1",
    "runs/lookup-1/steps/2",
    "runs/lookup-1/groups/g0",
    "runs/lookup-1/trajectories",
    "runs/lookup-1/trajectories?text=owl&order=-reward",
    "runs/lookup-1/trajectories/g0.1",
    "runs/lookup-1/trajectories/odd.1",
)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("view") / "runs").write()


@pytest.fixture
async def server(shelf: Shelf) -> AsyncIterator[ViewServer]:
    async with ViewServer(Runs(shelf.folder)) as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


async def read(client: aiohttp.ClientSession, address: str) -> tuple[int, str]:
    # As it stands: a dot or a slash in a name is part of the name.
    async with client.get(URL(address, encoded=True)) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("page", PAGES)
async def test_every_page_is_whole_and_asks_for_nothing_from_elsewhere(
    server: ViewServer, client: aiohttp.ClientSession, page: str
) -> None:
    async with client.get(server.address + page) as response:
        text = await response.text()
        assert response.status == 200, text
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Referrer-Policy"] == "no-referrer"
    assert text.startswith("<!doctype html>")
    assert not re.findall(r'(?:src|href)="(?!/|#|\?)', text), "every address is our own"
    assert "style=" not in text
    assert "javascript:" not in text
    prefix = urlsplit(server.address).path
    assert all(link.startswith(prefix) for link in re.findall(r'(?:src|href)="(/[^"]*)"', text))


async def test_a_broken_index_is_made_again_for_whoever_looks(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """It follows from the records, so no page is lost with it, wherever it is broken."""
    folder = Shelf(tmp_path / "runs").write().folder
    path = folder / "lookup-1" / "archive" / "index.sqlite"
    async with ViewServer(Runs(folder)) as server:
        await read(client, server.address + PAGES[1])
    whole = path.read_bytes()
    for start in range(0, len(whole), SQLITE_PAGE):
        for page in PAGES[1:]:
            path.write_bytes(broken(whole, start))
            async with ViewServer(Runs(folder)) as server:
                status, text = await read(client, server.address + page)
            assert status == 200, f"{start} {page}: {text}"


async def test_every_link_on_every_page_leads_somewhere(
    server: ViewServer, client: aiohttp.ClientSession
) -> None:
    """All pages within reach are read once, with their style sheets and script."""
    root = urlsplit(server.address)
    waiting, seen = [root.path], {root.path}
    while waiting:
        path = waiting.pop()
        status, text = await read(client, f"{root.scheme}://{root.netloc}{path}")
        assert status == 200, path
        for link in re.findall(r'(?:src|href|action)="(/[^"#]*)', text):
            plain = link.replace("&amp;", "&")
            if plain not in seen:
                seen.add(plain)
                waiting.append(plain)
    assert len(seen) > 100


async def test_what_a_model_wrote_is_text_on_every_page(
    server: ViewServer, client: aiohttp.ClientSession
) -> None:
    """Markup, escapes to a terminal, a turned direction of writing: shown, and none of it acts."""
    for page in ("trajectories", "trajectories/odd.1", "groups/odd", "trajectories?text=document"):
        status, text = await read(client, f"{server.address}runs/lookup-1/{page}")
        assert status == 200
        assert "<script>document" not in text
        assert "<img" not in text
        assert not {"\x1b", "\u202e"} & set(text)
        assert "&lt;script&gt;document" in text
        assert "⟨U+001B⟩" in text
    given = "%3Cscript%3Ealert(1)%3C/script%3E%22%20autofocus"
    _, text = await read(client, f"{server.address}runs/lookup-1/trajectories?text={given}")
    assert "<script>alert" not in text
    assert '" autofocus' not in text


@pytest.mark.parametrize(
    "path",
    [
        "runs/..",
        "runs/%2e%2e",
        "runs/..%2f..%2fetc",
        "runs/%2Fetc%2Fpasswd",
        "runs/lookup-1%2Flogs",
        "runs/lookup-1%00",
        "runs/nobody",
        "runs/lookup-1/steps/900",
        "runs/lookup-1/groups/nobody",
        "runs/lookup-1/trajectories/nobody",
        "runs/lookup-1/trajectories/g0.1?row=9",
        "assets/..%2Fserver.py",
        "assets/server.py",
        "../",
    ],
)
async def test_what_is_not_there_is_not_found(
    server: ViewServer, client: aiohttp.ClientSession, path: str
) -> None:
    status, text = await read(client, server.address + path)
    assert status == 404
    assert "Traceback" not in text


async def test_a_word_that_means_nothing_is_told_above_the_form(
    server: ViewServer, client: aiohttp.ClientSession
) -> None:
    address = f"{server.address}runs/lookup-1/trajectories?reward_min=much"
    status, text = await read(client, address)
    assert status == 400
    assert "reward_min = &#39;much&#39; is no number" in text
    assert "<form" in text


async def test_only_whoever_has_the_token_is_let_in(
    server: ViewServer, client: aiohttp.ClientSession
) -> None:
    """Everybody on this machine can reach the port."""
    root = urlsplit(server.address)
    for path in ("/", "/runs/lookup-1", root.path[:-2] + "/", f"/x{root.path}", "/assets/view.css"):
        status, text = await read(client, f"{root.scheme}://{root.netloc}{path}")
        assert status == 404
        assert root.path.strip("/") not in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", ""])
async def test_a_name_that_points_here_is_no_way_in(
    server: ViewServer, client: aiohttp.ClientSession, host: str
) -> None:
    """A page of somebody else's may have its own name resolve to this machine."""
    given = host.format(port=urlsplit(server.address).port)
    async with client.get(server.address, headers={"Host": given}) as response:
        assert response.status in {400, 421}
        assert "lookup" not in await response.text()
    local = f"localhost:{urlsplit(server.address).port}"
    async with client.get(server.address, headers={"Host": local}) as response:
        assert response.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_pages_are_read_and_nothing_else(
    server: ViewServer, client: aiohttp.ClientSession, method: str
) -> None:
    async with client.request(method, server.address) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
    async with client.head(server.address) as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_nothing_of_a_run_is_changed_by_looking(
    server: ViewServer, client: aiohttp.ClientSession, shelf: Shelf
) -> None:
    for page in PAGES:
        await read(client, server.address + page)

    def look() -> dict[str, tuple[int, int]]:
        files = (path for path in shelf.folder.rglob("*") if path.is_file())
        # SQLite keeps its own books beside the index: they follow from the records alone.
        kept = (path for path in files if "index." not in path.name)
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in kept}

    before = await asyncio.to_thread(look)
    for page in PAGES:
        await read(client, server.address + page)
    assert await asyncio.to_thread(look) == before


async def test_more_than_can_be_answered_at_once_are_all_answered_in_the_end(
    server: ViewServer, client: aiohttp.ClientSession
) -> None:
    """Too many at once are told so; the server goes on."""
    asked = [
        read(client, f"{server.address}runs/lookup-1/trajectories") for _ in range(2 * REQUESTS_MAX)
    ]
    statuses = {status for status, _ in await asyncio.gather(*asked)}
    assert statuses <= {200, 503}
    assert (await read(client, server.address))[0] == 200


async def test_tokens_are_text_and_where_they_cannot_be_the_page_says_why(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """The tokenizer has changed since, or is gone: ids are shown, never other tokens' text."""
    shelf = Shelf(tmp_path / "runs").write()
    address = "runs/lookup-1/trajectories/g0.1"
    async with ViewServer(Runs(shelf.folder)) as server:
        _, text = await read(client, server.address + address)
        assert ">&lt;|im_start|&gt;</span>" in text
        assert "Ids in place of text" not in text
    file = shelf.model / "tokenizer.json"
    file.write_text(file.read_text().replace("zoe", "zoo"))
    async with ViewServer(Runs(shelf.folder)) as server:
        _, text = await read(client, server.address + address)
        assert re.search("Ids in place of text: the tokenizer in .* has the hash", text)
        assert "im_start" not in text
    file.unlink()
    async with ViewServer(Runs(shelf.folder)) as server:
        _, text = await read(client, server.address + address)
        assert "Ids in place of text: no tokenizer lies where the topology says" in text


async def test_a_tokenizer_process_that_ends_is_started_again(shelf: Shelf) -> None:
    row = make_row(shelf.model, "a.0", [], reward=0.0, status=Status.COMPLETED)
    spellers = Spellers()
    question = Question(token_ids=[1, 2], start=0, end=2)
    first = await spellers.spell(shelf.model, row.certificate.tokenizer_hash, question)
    assert first.pieces is not None
    for speller in spellers._open.values():
        await speller.close()
    again = await spellers.spell(shelf.model, row.certificate.tokenizer_hash, question)
    assert "try again" in again.error
    assert await spellers.spell(shelf.model, row.certificate.tokenizer_hash, question) == first
    await spellers.close()


async def test_the_command_prints_its_address_serves_and_ends_with_sigterm(shelf: Shelf) -> None:
    command = [sys.executable, "-P", "-c", VIEW, "view", str(shelf.folder)]
    process = await asyncio.create_subprocess_exec(*command, "--json", stdout=PIPE)
    try:
        assert process.stdout is not None
        address = json.loads(await process.stdout.readline())["address"]
        async with aiohttp.ClientSession() as client:
            assert "lookup-1" in (await read(client, address))[1]
        taken = str(urlsplit(address).port)
        other = await asyncio.create_subprocess_exec(*command, "--port", taken, stderr=PIPE)
        _, said = await other.communicate()
        assert other.returncode == 2
        assert f"error: port {taken}: Address already in use" in said.decode()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_browser_is_opened_without_the_token_on_its_command_line(
    shelf: Shelf, tmp_path: Path
) -> None:
    """What a process was started with can be read by everybody on this machine."""
    told = tmp_path / "told"
    os.mkfifo(told)
    script = tmp_path / "browser.py"
    script.write_text(f"import sys, pathlib\npathlib.Path({str(told)!r}).write_text(sys.argv[1])\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", VIEW, "view", str(shelf.folder), "--open", "--json"),
        stdout=PIPE,
        env={**os.environ, "BROWSER": f"{sys.executable} {script} %s"},
    )
    try:
        assert process.stdout is not None
        address = json.loads(await process.stdout.readline())["address"]
        page = Path(URL(await asyncio.to_thread(told.read_text)).path)
        assert urlsplit(address).path.strip("/") not in str(page)
        assert f"url={address}" in await asyncio.to_thread(page.read_text)
        assert (await asyncio.to_thread(page.stat)).st_mode & 0o077 == 0
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert not await asyncio.to_thread(page.exists)


def test_the_hostile_words_of_these_tests_are_hostile() -> None:
    assert {"<", "\x1b", "\u202e", "'"} <= set(EVIL)
