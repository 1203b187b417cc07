"""The rounds of a client that is measured: orders come as lines of JSON, figures go back.

Receives what to do; hands on how many a second there were and what that cost the client's process.
Imports nothing but the standard library, because it also runs where only a rival is installed.

    {"do": "one", "seconds": 3.0} -> {"count": 9000, "per_second": 3000.0, "client_us": 80.1}
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

BODY = b"x" * 1024
Figures = dict[str, float]


class Meter:
    """Measures from its making."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._processor = time.process_time()

    def figures(self, count: int) -> Figures:
        """Return what `count` messages since then came to."""
        wall = time.perf_counter() - self._wall
        processor = time.process_time() - self._processor
        return {
            "count": count,
            "per_second": round(count / wall, 1),
            "client_us": round(processor / max(1, count) * 1e6, 1),
        }


def serve(verbs: Mapping[str, Callable[..., Figures]]) -> None:
    """Carry out orders until there are no more."""
    print("{}", flush=True)
    for line in sys.stdin:
        _answer(verbs[(order := json.loads(line)).pop("do")](**order))


async def serve_on_loop(verbs: Mapping[str, Callable[..., Awaitable[Figures]]]) -> None:
    """Carry out orders on this loop, which goes on between them, until there are no more."""
    print("{}", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order: dict[str, Any] = json.loads(line)
        _answer(await verbs[order.pop("do")](**order))


def _answer(figures: Figures) -> None:
    print(json.dumps(figures), flush=True)


async def in_lanes(lanes: int, seconds: float, send: Callable[[], Awaitable[object]]) -> Figures:
    """Measure `send`, so many tasks at a time, each with one message under way."""
    loop, count, meter = asyncio.get_running_loop(), 0, Meter()
    end = loop.time() + seconds

    async def lane() -> None:
        nonlocal count
        while loop.time() < end:
            await send()
            count += 1

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return meter.figures(count)
