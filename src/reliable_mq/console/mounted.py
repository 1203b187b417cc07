"""Puts the console beside an ASGI application that mounts none itself, such as that of Django.

Receives requests of both. Requests below the place of the console go to it, the others to the
application. Django knows no start and no end of a process: the console is told of both here.
"""

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from reliable_mq.errors import ConfigurationError


def checked_place(path: str) -> str:
    """Return where a console is mounted: "/mq".

    Raises:
        ConfigurationError: it is no such path.
    """
    if not path.startswith("/") or path.endswith("/") or "//" in path:
        raise ConfigurationError(f"mount {path!r}: write a path such as '/mq'")
    return path


class ConsoleBeside:
    """An ASGI application: the console at its place, and another application everywhere else.

    Args:
        app: the other application.
        path: the place of the console.
        console: the console.
    """

    def __init__(self, app: ASGIApp, path: str, console: ASGIApp) -> None:
        self._app = app
        self._path = path
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._console(scope, receive, send)
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
