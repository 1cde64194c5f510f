"""A real headless Chromium, driven over its DevTools protocol, through aiohttp's web socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or ""
LISTENS: Final = b"DevTools listening on "


class PageFailed(AssertionError):
    """A page threw, or the browser refused a command."""


class Page:
    """One tab.

    Attributes:
        requested: address of everything that pages of this tab have asked for.
        complaints: what the console and the security policy said.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket, self._session = socket, session
        self._numbers = itertools.count(100)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.requested: list[str] = []
        self.complaints: list[str] = []

    async def open(self, address: str) -> None:
        """Go there and wait until all of it is loaded."""
        self._loaded.clear()
        told = await self.command("Page.navigate", url=address)
        assert "errorText" not in told, told
        await self._loaded.wait()

    async def following(self, expression: str) -> None:
        """Evaluate what leads to another page, and wait until that is loaded."""
        self._loaded.clear()
        await self.evaluate(expression)
        await self._loaded.wait()

    async def shape(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The window, and whether its owner likes it dark."""
        await self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, as JSON has it."""
        told = await self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in told:
            raise PageFailed(str(told["exceptionDetails"]))
        return told["result"].get("value")

    async def press(self, key: str) -> None:
        """One key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            await self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text)

    async def photograph(self) -> bytes:
        """The whole page as PNG."""
        told = await self.command("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(told["data"])

    async def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | {"sessionId": self._session})
        told: dict[str, Any] = await answer
        return told

    async def listen(self) -> None:
        """Take what the browser says, until it closes."""
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answered(told)
            else:
                self._happened(told["method"], told["params"])
        for answer in self._answers.values():
            answer.set_exception(PageFailed("the browser is gone"))

    def _answered(self, told: dict[str, Any]) -> None:
        answer = self._answers.pop(told["id"])
        if "error" in told:
            answer.set_exception(PageFailed(str(told["error"])))
        else:
            answer.set_result(told["result"])

    def _happened(self, method: str, told: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.requested.append(told["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(told["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["exceptionDetails"]))


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Page]:
    """A browser with one tab; it is gone afterwards, with all its processes."""
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    silence: list[asyncio.Task[bytes]] = []
    try:
        async for line in process.stderr:
            if line.startswith(LISTENS):
                break
        else:
            raise PageFailed(f"chromium ended with {await process.wait()}")
        silence.append(asyncio.create_task(process.stderr.read(), name="chromium's words"))
        address = line.removeprefix(LISTENS).decode().strip()
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(address, max_msg_size=0) as socket,
        ):
            page = Page(socket, await _tab(socket))
            listening = asyncio.create_task(page.listen(), name="chromium")
            for domain in ("Page", "Network", "Log", "Runtime"):
                await page.command(f"{domain}.enable")
            yield page
            await socket.close()
            await listening
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await asyncio.gather(*silence)


async def _tab(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The session of a new tab, before anything else is asked."""
    target = await _first(socket, 1, "Target.createTarget", url="about:blank")
    attached = await _first(
        socket, 2, "Target.attachToTarget", targetId=target["targetId"], flatten=True
    )
    return str(attached["sessionId"])


async def _first(
    socket: aiohttp.ClientWebSocketResponse, number: int, method: str, **parameters: Any
) -> dict[str, Any]:
    await socket.send_json({"id": number, "method": method, "params": parameters})
    async for message in socket:
        told: dict[str, Any] = message.json()
        if told.get("id") == number:
            assert "result" in told, told
            result: dict[str, Any] = told["result"]
            return result
    raise PageFailed("the browser is gone")
