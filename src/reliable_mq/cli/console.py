"""`reliable-mq console`: serves the pages for the people on call."""

import asyncio
import ctypes
import getpass
import ipaddress
import logging
import os
import shlex
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from reliable_mq.cli import database_options as options
from reliable_mq.cli import log_options
from reliable_mq.cli.console_oidc import OidcOptions, oidc_options
from reliable_mq.cli.database_options import application_of
from reliable_mq.cli.saying import say
from reliable_mq.cli.serving import stop_signals
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.errors import AddressRefused, UsageError
from reliable_mq.extras import extra_of
from reliable_mq.limits import PORT_MAX

SECRET_VARIABLE = "RELIABLE_MQ_CONSOLE_SECRET"  # noqa: S105 - the name of a variable
PASSWORD_LENGTH_MIN = 8
IncrementOptions = Annotated[
    str,
    typer.Option(
        metavar="OPTIONS",
        help="Options of `reliable-mq reconcile` for increments that are started from a page, in"
        " one text, such as '--store DIR --out DIR'.",
        show_default=False,
    ),
]

Users = Annotated[
    Path | None,
    typer.Option(
        help="The users who may log in: config/access.json of a broker, or a file of"
        " --add-user. Default: nobody logs in, at 127.0.0.1 only.",
        show_default=False,
    ),
]
AddUser = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Write this user into --users, and end; it asks for the password."
    ),
]
TraceUrl = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Address of a trace, with {trace_id}: the page of a message has the link. Default:"
        " no link.",
        show_default=False,
    ),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]DIR",
        help="Store directory of a broker at this machine: a message is read there while its"
        " broker is away. Repeat it for several brokers.",
        show_default=False,
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option(help="The folder of reconcile --out: its runs are listed.", show_default=False),
]
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Names of settings in glibc's malloc.h."""
_TRIM_SECONDS = 60.0


@takes_options_of(options.named_place_of, "place")
@takes_options_of(oidc_options, "oidc")
def command(
    *,
    place: options.Place,
    oidc: OidcOptions,
    broker: options.Broker = "",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0: a free one.", min=0, max=PORT_MAX)] = 8080,
    users: Users = None,
    add_user: AddUser = "",
    role: Annotated[
        str, typer.Option(help="The role of --add-user: viewer, operator or admin.")
    ] = "viewer",
    trace_url: TraceUrl = "",
    store: Stores = None,
    runs: Runs = None,
    increment_options: IncrementOptions = "",
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Serve pages: is anything wrong, where is a message, what to do about it.

    When it is ready, it prints one line: "ready console=http://HOST:PORT". Without --users, it
    serves this machine only, and everybody here is an admin. SIGTERM stops it.
    """
    provider = oidc.settings()
    with extra_of("reliable-mq console"):
        import uvicorn  # noqa: PLC0415 - an extra

        from reliable_mq.console import console_app  # noqa: PLC0415 - an extra
    if add_user:
        _add_user(users, add_user, role)
        return
    if users is None and provider is None and not _is_here(host):
        raise UsageError(
            f"--host {host}: without --users, the console serves 127.0.0.1 only: everybody who"
            " reaches it would be an admin; make a file with --users FILE --add-user NAME"
        )
    if users is not None and not users.exists():
        raise UsageError(
            f"--users {users}: there is no such file; make it with --users {users} --add-user NAME"
        )
    trim = _give_memory_back()
    log_options.write_log(log_format, log_level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    mq = application_of(place, "console", broker="" if place.application else broker)
    app = console_app(
        mq,
        users=users,
        broker=broker,
        secret=os.environ.get(SECRET_VARIABLE, ""),
        trace_url=trace_url,
        runs=runs,
        stores=store or (),
        oidc=provider,
        increment_options=_words(increment_options),
    )
    try:
        asyncio.run(_serve(uvicorn, app, host, port, trim))
    finally:
        mq.close()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--increment-options: {error}") from error


def _give_memory_back() -> Callable[[], None] | None:
    """Let the allocator of glibc keep little of what is freed; elsewhere, nothing is done.

    Each reading has a thread, and glibc gives threads up to eight arenas for a core: each keeps
    what was freed in it. A page of 500 rows is large, and is freed at once. Returns what gives
    back the pages between what is in use; None: there is no such thing here.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    mallopt(_ARENA_MAX, 2)
    mallopt(_MMAP_THRESHOLD, 128 * 1024)
    return lambda: trim(0)


async def _trim_again(trim: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        trim()


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _add_user(users: Path | None, name: str, role: str) -> None:
    from reliable_mq.console.users import Role, add_user  # noqa: PLC0415 - as in `command`

    if users is None:
        raise UsageError("--add-user needs --users FILE: the file to write")
    if role not in list(Role):
        raise UsageError(f"--role takes {', '.join(Role)}, not {role!r}")
    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
    else:
        password = sys.stdin.readline().rstrip("\n")
    if len(password) < PASSWORD_LENGTH_MIN:
        raise UsageError(f"a password has at least {PASSWORD_LENGTH_MIN} characters")
    add_user(users, name, Role(role), password)
    say(f"{name} may log in as {role}")


async def _serve(
    uvicorn: Any, app: Any, host: str, port: int, trim: Callable[[], None] | None = None
) -> None:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise AddressRefused(
            f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --port"
            " (0: a free one)"
        ) from error
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a visitor could choose the address whose wrong passwords count
        date_header=False,
        timeout_graceful_shutdown=5,
        lifespan="on",
        h11_max_incomplete_event_size=65_536,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # ours stop it
    with stop_signals() as stop:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        shown = f"[{host}]" if ":" in host else host
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(f"ready console=http://{shown}:{listener.getsockname()[1]}", flush=True)
        stopping = asyncio.create_task(stop.wait())
        trimming = asyncio.create_task(_trim_again(trim)) if trim is not None else None
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
        stopping.cancel()
        if trimming is not None:
            trimming.cancel()
