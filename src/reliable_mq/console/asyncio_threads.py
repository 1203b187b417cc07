"""Runs what waits for a source in threads of the console's own.

The threads of Starlette are for the whole process. A console whose database hangs would take those
of the application that it is mounted in.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from reliable_mq.console.sources import fault_of
from reliable_mq.errors import ReliableMQError
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

THREADS = 40
_PART_LINES = 500
_limiter: RunVar[CapacityLimiter] = RunVar("reliable_mq_console_threads")

T = TypeVar("T")


async def in_thread(call: Callable[..., T], *values: object) -> T:
    """Return what a call returns; it runs in one of the console's threads."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(THREADS)
        _limiter.set(limiter)
    return await to_thread.run_sync(partial(call, *values), limiter=limiter)


def threaded(endpoint: Callable[[Request], Response]) -> Callable[[Request], object]:
    """Return an endpoint that runs in one of the console's threads."""

    async def answered(request: Request) -> Response:
        return await in_thread(endpoint, request)

    return answered


async def streamed(lines: Iterator[str]) -> AsyncIterator[bytes]:
    """Yield the bytes of lines as they are read, some lines at once."""
    while part := await in_thread(lambda: "".join(islice(lines, _PART_LINES))):
        yield part.encode("utf-8", "backslashreplace")


class ExportResponse(StreamingResponse):
    """A file of rows. If its source goes away in the middle, it has no end.

    So the server cuts the connection, and whoever reads the file is told that it is not whole.
    """

    async def stream_response(self, send: Send) -> None:
        """Send the rows; after the last one, the end."""
        try:
            await super().stream_response(send)
        except (ReliableMQError, SQLAlchemyError) as error:
            application_events.CONSOLE_EXPORT_CUT.log(log, error=fault_of(error))
