"""From an address to its page. Files are read and pages made on one thread, off the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from milepost.actors.archive.index import IndexLocked
from milepost.actors.archive.layout import RecordDamaged
from milepost.actors.archive.reader import IndexDamaged, Unknown
from milepost.actors.archive.schema import is_damage
from milepost.configs.problem import ConfigError
from milepost.launch.report.html import HERE as SHARED
from milepost.launch.report.html import environment, render
from milepost.launch.view.details import Opened, group_page, open_row, trajectory_page
from milepost.launch.view.links import Links
from milepost.launch.view.lists import (
    Facts,
    NotThere,
    form_facts,
    run_page,
    runs_page,
    search_page,
    step_page,
)
from milepost.launch.view.paging import page_number, paging
from milepost.launch.view.rows import RowText, values_of
from milepost.launch.view.runs import NoSuchRun, OpenRun, Runs
from milepost.launch.view.searching import NotSearchable, words_of
from milepost.launch.view.speller import Question, Spellers, tokenizer_folder

HERE: Final = Path(str(files(__package__)))
ASSETS: Final = {
    "base.css": (SHARED, "text/css"),
    "view.css": (HERE, "text/css"),
    "view.js": (HERE, "text/javascript"),
    "icon.svg": (HERE, "image/svg+xml"),
}
Page = Callable[[web.Request], Awaitable[web.Response]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")


class Site:
    """All pages of one server.

    Args:
        runs: what is shown.
        links: addresses of pages.
        spellers: turn tokens into text.
    """

    def __init__(self, runs: Runs, links: Links, spellers: Spellers) -> None:
        self._runs, self._links, self._spellers = runs, links, spellers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pages")
        self._templates = environment(HERE)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Say which addresses there are."""
        run = f"{self._links.prefix}/runs/{{run}}"
        router.add_get(f"{self._links.prefix}/", self._guarded(self.runs))
        router.add_get(run, self._guarded(self.run))
        router.add_get(f"{run}/steps/{{step:[0-9]{{1,12}}}}", self._guarded(self.step))
        router.add_get(f"{run}/groups/{{group}}", self._guarded(self.group))
        router.add_get(f"{run}/trajectories", self._guarded(self.search))
        router.add_get(f"{run}/trajectories/{{trajectory}}", self._guarded(self.trajectory))
        router.add_get(f"{self._links.prefix}/assets/{{name}}", self.asset)

    async def close(self) -> None:
        """End the tokenizers' processes and close the archives."""
        await self._spellers.close()
        await self._work(self._runs.close)
        self._thread.shutdown()

    # ---- pages ---------------------------------------------------------------------------

    async def runs(self, request: web.Request) -> web.Response:
        """Every run."""
        number = _page(request)

        def make() -> str:
            facts = runs_page(self._runs, number, self._links)
            if self._runs.is_one:
                facts["pages"] = []
            return self._render("runs.html", "runs", facts)

        return _html(await self._work(make))

    async def run(self, request: web.Request) -> web.Response:
        """One run."""
        return await self._of_run(
            request,
            "run.html",
            "",
            lambda run: run_page(run, _page(request), self._links),
        )

    async def step(self, request: web.Request) -> web.Response:
        """One step."""
        step = int(request.match_info["step"])
        return await self._of_run(
            request,
            "step.html",
            f"step {step}",
            lambda run: step_page(run, step, _page(request), self._links),
        )

    async def group(self, request: web.Request) -> web.Response:
        """One group."""
        group = request.match_info["group"]
        return await self._of_run(
            request,
            "group.html",
            f"group {group}",
            lambda run: group_page(run, group, _page(request), self._links),
        )

    async def search(self, request: web.Request) -> web.Response:
        """The trajectories that are searched for."""
        given = words_of(request.query)
        try:
            return await self._of_run(
                request,
                "search.html",
                "trajectories",
                lambda run: search_page(run, given, self._links),
            )
        except NotSearchable as error:
            none = {"found": [], "page": paging(1, 1, 0), "pages": [], "is_narrow": True}
            facts = {**form_facts(given), **none, "problem": str(error)}
            response = await self._of_run(request, "search.html", "trajectories", lambda _: facts)
            response.set_status(HTTPStatus.BAD_REQUEST)
            return response

    async def trajectory(self, request: web.Request) -> web.Response:
        """The reader."""
        name, words = request.match_info["trajectory"], dict(request.query)

        def read() -> tuple[OpenRun, Opened]:
            run = self._runs.open(request.match_info["run"])
            return run, open_row(run, name, words)

        run, opened = await self._work(read)
        text = await self._spelled(run, opened)
        colour = words.get("colour", "")
        return await self._of_run(
            request,
            "trajectory.html",
            f"trajectory {name}",
            lambda run: trajectory_page(run, opened, text, colour, self._links),
        )

    async def asset(self, request: web.Request) -> web.Response:
        """A style sheet or the script: one of a few files, by name."""
        found = ASSETS.get(request.match_info["name"])
        if found is None:
            return self._problem(HTTPStatus.NOT_FOUND, "no such file")
        folder, kind = found
        text = await self._work((folder / request.match_info["name"]).read_text, "utf-8")
        return web.Response(text=text, content_type=kind)

    # ---- making them ---------------------------------------------------------------------

    async def _of_run(
        self, request: web.Request, template: str, title: str, facts: Callable[[OpenRun], Facts]
    ) -> web.Response:
        name = request.match_info["run"]

        def make() -> str:
            run = self._runs.open(name)
            here = {"run": name, "archived": run.archive is not None}
            return self._render(template, title or name, {**here, **facts(run)})

        return _html(await self._work(make))

    async def _spelled(self, run: OpenRun, opened: Opened) -> RowText:
        """The text of the tokens on the page, or why there is none."""
        certificate = opened.row.certificate
        folder = await self._work(_tokenizer, run)
        if folder is None:
            return RowText(why_not="no tokenizer lies where the topology says, nor in the run")
        question = Question(
            token_ids=[int(each) for each in values_of(opened.row.token_ids)],
            start=opened.start,
            end=opened.end,
            mismatch=certificate.canonical_mismatch or "",
        )
        found = await self._spellers.spell(folder, certificate.tokenizer_hash, question)
        return RowText(
            pieces=found.pieces,
            start=opened.start,
            special=frozenset(found.special),
            mismatch=found.mismatch,
            why_not=found.error,
        )

    def _render(self, template: str, title: str, facts: Mapping[str, object]) -> str:
        return render(self._templates, template, {"link": self._links, "title": title, **facts})

    def _problem(self, status: HTTPStatus, text: str) -> web.Response:
        page = self._render("problem.html", status.phrase.lower(), {"text": text})
        response = _html(page)
        response.set_status(status)
        return response

    def _guarded(self, page: Page) -> Handler:
        """The same page; what it cannot show becomes a page that says so."""

        async def show(request: web.Request) -> web.StreamResponse:
            try:
                return await self._with_index(page, request)
            except Unknown as error:
                return self._problem(HTTPStatus.NOT_FOUND, str(error.args[0]))
            except (NoSuchRun, NotThere) as error:
                return self._problem(HTTPStatus.NOT_FOUND, str(error))
            except (ConfigError, RecordDamaged, OSError, ValueError, sqlite3.Error) as error:
                # A run may be removed, or written by somebody else, while it is looked at.
                run = request.match_info.get("run")
                if run is not None and not await self._work(self._runs.is_there, run):
                    return self._problem(HTTPStatus.NOT_FOUND, f"run {run!r} was removed")
                return self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

        return show

    async def _with_index(self, page: Page, request: web.Request) -> web.StreamResponse:
        """The page; where the index of its run is broken, once more with one that is made anew."""
        try:
            return await page(request)
        except (IndexDamaged, sqlite3.DatabaseError) as error:
            if not isinstance(error, IndexDamaged) and not is_damage(error):
                raise
            try:
                await self._work(self._runs.discard_index, request.match_info["run"])
            except (IndexLocked, OSError):
                raise error from None
        return await page(request)

    async def _work(
        self, make: Callable[Inputs, Result], *args: Inputs.args, **named: Inputs.kwargs
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: make(*args, **named))


def _tokenizer(run: OpenRun) -> Path | None:
    """Where the run's tokenizer lies. Its hash is compared with each certificate's afterwards."""
    return tokenizer_folder(run.folder, run.files.topology.model)


def _page(request: web.Request) -> int:
    return page_number(request.query.get("page", ""))


def _html(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")
