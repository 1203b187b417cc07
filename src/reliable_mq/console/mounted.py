"""Lets the console live in another ASGI application, or beside one.

Starlette and FastAPI mount the console, and tell only their own lifespan of start and end: the
console's is put inside of it. Beside an application that mounts none itself, such as that of
Django, requests below the place of the console go to it, the others to the application. Both are
told of the start and the end of the process. Django knows neither.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_mq.errors import ConfigurationError

_STARTED, _ENDS, _ENDED, _ENDED_BADLY = (
    f"lifespan.{each}"
    for each in ("startup.complete", "shutdown", "shutdown.complete", "shutdown.failed")
)


def checked_place(path: str) -> str:
    """Return where a console is mounted: "/mq".

    Raises:
        ConfigurationError: it is no such path.
    """
    if not path.startswith("/") or path.endswith("/") or "//" in path:
        raise ConfigurationError(f"mount {path!r}: write a path such as '/mq'")
    return path


def end_with(app: Any, console: Starlette) -> None:
    """Let a console start after the application that mounts it, and end before it.

    The application ends as usual if the end of the console fails; that error is raised then.

    Args:
        app: an application or a router of Starlette or FastAPI. Another one has no such lifespan,
            and is left as it is.
        console: the console.
    """
    holder = getattr(app, "router", app)
    own = getattr(holder, "lifespan_context", None)
    if own is None:
        return

    @asynccontextmanager
    async def both(served: Any) -> AsyncIterator[Any]:
        faults: list[Exception] = []
        async with own(served) as state:
            life = AsyncExitStack()
            await life.enter_async_context(console.router.lifespan_context(console))
            try:
                yield state
            finally:
                await _end(life, faults)
        for each in faults:
            raise each

    holder.lifespan_context = both


async def _end(life: AsyncExitStack, faults: list[Exception]) -> None:
    """End the life of a console; note what went wrong."""
    try:
        await life.aclose()
    except Exception as error:  # noqa: BLE001 - the application must end first
        faults.append(error)


class ConsoleBeside:
    """An ASGI application: the console at its place, and another application everywhere else.

    Args:
        app: the other application.
        path: the place of the console.
        console: the console.
    """

    def __init__(self, app: ASGIApp, path: str, console: Starlette) -> None:
        self._app = app
        self._path = path
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        root = scope.get("root_path", "")
        own = str(scope["path"]).removeprefix(root)
        if scope["type"] == "http" and own == self._path:
            await RedirectResponse(f"{root}{self._path}/", 307)(scope, receive, send)
        elif own.startswith(f"{self._path}/"):
            place = {**scope, "root_path": root + self._path}
            await self._console(place, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell both of start and end. The console starts after the application, and ends before."""
        heard: list[Message] = []
        said: list[str] = []
        faults: list[Exception] = []
        life = AsyncExitStack()

        async def hear() -> Message:
            heard.append(await receive())
            if heard[-1]["type"] == _ENDS:
                await _end(life, faults)
            return heard[-1]

        async def say(message: Message) -> None:
            said.append(message["type"])
            if said[-1] == _STARTED:
                await life.enter_async_context(self._console.router.lifespan_context(self._console))
            if said[-1] == _ENDED and faults:
                message = {"type": _ENDED_BADLY, "message": f"the console: {faults[0]!r}"}
            await send(message)

        async def hear_again() -> Message:
            return heard.pop(0) if heard else await receive()

        async with life:
            try:
                await self._app(scope, hear, say)
            except Exception:
                if said:
                    raise
            if said == [_STARTED] and heard[-1:] and heard[-1]["type"] != _ENDS:
                await hear()  # it waits for no end; the console does
                await say({"type": _ENDED})
        if not said:  # the application knows no such thing: it raised, or returned
            await self._console(scope, hear_again, send)
        for each in faults:
            raise each
