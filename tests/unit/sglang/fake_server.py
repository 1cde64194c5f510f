"""A server that speaks SGLang's words and can fail in every way the real one was seen to fail."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

VOCABULARY = 96


class FakeServer:
    """Samples token 7 with log-prob -1; replies that are held end by `free`, or by an abort.

    Attributes:
        version: of SGLang, as it says.
        weights: version of its weights.
        asked: every door it was asked at, in order.
        held: hold replies back until freed or aborted.
        broken: doors that answer 500.
        garbled: doors whose JSON breaks off.
        silent: doors that never answer.
        slow: doors that answer once their event is set.
    """

    def __init__(self, version: str) -> None:
        self.version, self.weights, self.url = version, "default", ""
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.held = False
        self.broken: set[str] = set()
        self.garbled: set[str] = set()
        self.silent: set[str] = set()
        self.slow: dict[str, asyncio.Event] = {}
        self.num_tokens_held = 2
        self._replies: dict[str, asyncio.Future[str]] = {}
        self._never = asyncio.Event()
        self._arrived = asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/{door:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        self._never.set()
        await self._runner.cleanup()

    async def holds(self, count: int) -> None:
        """Wait until so many replies are held."""
        async with asyncio.timeout(20):
            while len(self._replies) < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def is_asked(self, door: str) -> None:
        """Wait until somebody asks at this door."""
        async with asyncio.timeout(20):
            while door not in self.asked:
                self._arrived.clear()
                await self._arrived.wait()

    def free(self) -> None:
        """End every held reply as it would end by itself."""
        for reply in self._replies.values():
            reply.set_result("length")

    async def _answer(self, request: web.Request) -> web.Response:
        door = request.path
        self.asked.append(door)
        self._arrived.set()
        body = await request.json() if request.can_read_body else {}
        if (goes_on := self.slow.get(door)) is not None:
            await goes_on.wait()
        if door in self.silent:
            await self._never.wait()
        if door in self.broken:
            return web.json_response({"error": {"message": f"{door} is broken"}}, status=500)
        if door in self.garbled:
            return web.Response(text='{"success": tr')
        match door:
            case "/generate":
                return await self._generate(body)
            case "/abort_request":
                if (reply := self._replies.get(body["rid"])) is not None and not reply.done():
                    reply.set_result("abort")
            case "/update_weights_from_tensor":
                self.weights = body.get("weight_version", self.weights)
                return web.json_response({"success": True, "message": ""})
            case "/server_info":
                return web.json_response(self._info())
            case "/v1/loads":
                rank = {"num_running_reqs": 1, "num_used_tokens": 10, "max_total_num_tokens": 50}
                return web.json_response({"loads": [rank, rank]})
        return web.json_response({"success": True})

    async def _generate(self, body: dict[str, Any]) -> web.Response:
        self.bodies.append(body)
        if "top_k" in body["sampling_params"] and body["sampling_params"]["top_k"] == 13:
            return web.json_response({"error": {"message": "no such top_k"}}, status=400)
        tokens_max, end = body["sampling_params"]["max_new_tokens"], "length"
        if self.held:
            reply = self._replies[body["rid"]] = asyncio.get_running_loop().create_future()
            self._arrived.set()
            end = await reply
            del self._replies[body["rid"]]
        count = tokens_max if end == "length" else min(tokens_max, self.num_tokens_held)
        meta: dict[str, Any] = {
            "finish_reason": {"type": end},
            "prompt_tokens": len(body["input_ids"]),
            "cached_tokens": 0,
            "output_token_logprobs": [[-1.0, 7, None]] * count,
        }
        if self.version != "0.5.17":
            span = {"version": self.weights, "start": 0, "end": count}
            meta["weight_versions"] = [span]
        return web.json_response({"output_ids": [7] * count, "meta_info": meta})

    def _info(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "allow_auto_truncate": False,
            "enable_deterministic_inference": False,
            "enable_return_routed_experts": False,
            "context_length": 264,
            "tp_size": 1,
            "dp_size": 1,
        }
