"""What a server of streams costs at the least: bare Starlette, a clock, and the same bytes.

``stepwell bench streams --floor`` runs it as a process of its own.  No model, no scheduler, no limits: every beat all
streams are woken, and each sends its next token in the frame that ours uses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from stepwell.cli.process_stats import raise_descriptors
from stepwell.sim.numbered import NUMBERED

_ID = "0" * 32


class Beat:
    """Wakes everybody at once, every ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = asyncio.Event()

    async def run(self) -> None:
        due_s = asyncio.get_running_loop().time()
        while True:
            due_s += self._seconds
            await asyncio.sleep(due_s - asyncio.get_running_loop().time())
            now, self._next = self._next, asyncio.Event()
            now.set()

    async def tokens(self, count: int) -> AsyncIterator[str]:
        for number in range(count):
            await self._next.wait()
            at = 2 * number % len(NUMBERED)
            yield NUMBERED[at : at + 2]


async def _sse(request: Request) -> StreamingResponse:
    count = json.loads(await request.body())["max_tokens"]
    head = f'data: {{"id":"chatcmpl-{_ID}","object":"chat.completion.chunk","created":1796000000,"model":"costmodel",'

    async def body() -> AsyncIterator[bytes]:
        async for text in request.app.state.beat.tokens(count):
            choice = f'{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null}}'
            yield f'{head}"choices":[{choice}]}}\n\n'.encode()
        yield f'{head}"choices":[{{"index":0,"delta":{{}},"finish_reason":"length"}}]}}\n\ndata: [DONE]\n\n'.encode()

    return StreamingResponse(body(), media_type="text/event-stream")


async def _socket(socket: WebSocket) -> None:
    await socket.accept()
    tail = f'"item_id":"msg_{_ID}","output_index":0,"content_index":0'
    try:
        while True:
            asked = json.loads(await socket.receive_text())
            sequence = 0
            async for text in socket.app.state.beat.tokens(asked["max_output_tokens"]):
                sequence += 1
                await socket.send_text(
                    f'{{"type":"response.output_text.delta","sequence_number":{sequence},{tail},"delta":"{text}",'
                    '"logprobs":[]}'
                )
            await socket.send_text('{"type":"response.incomplete"}')
    except WebSocketDisconnect:
        pass


async def _serve(seconds: float, listener: socket.socket) -> None:
    app = Starlette(
        routes=[Route("/v1/chat/completions", _sse, methods=["POST"]), WebSocketRoute("/v1/responses", _socket)]
    )
    app.state.beat = Beat(seconds)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, ws="websockets-sansio", ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    beating = asyncio.ensure_future(app.state.beat.run())
    print(f"floor at http://127.0.0.1:{listener.getsockname()[1]}/v1\ntry: it", flush=True)
    await uvicorn.Server(config).serve([listener])
    beating.cancel()


def main() -> None:
    """Until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beat", type=float, default=1.0, metavar="S", help="seconds a token (1)")
    args = parser.parse_args()
    raise_descriptors()
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        asyncio.run(_serve(args.beat, listener))


if __name__ == "__main__":
    main()
