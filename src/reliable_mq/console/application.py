"""`console_app` returns the console as an ASGI application; `mount` puts it into another one."""

import secrets
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.thread_upkeep import actor
from reliable_mq.errors import ConfigurationError
from reliable_mq.extras import ExtraMissing
from reliable_mq.misspelt import names_checked

for _module in ("starlette", "jinja2", "prometheus_client"):
    if find_spec(_module) is None:
        raise ExtraMissing(
            f"{_module} is not installed; pip install 'reliable-mq[console]'", name=_module
        )

from starlette.applications import Starlette  # noqa: E402 - after the check
from starlette.exceptions import HTTPException  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.routing import BaseRoute  # noqa: E402

from reliable_mq.console.asyncio_threads import in_thread  # noqa: E402
from reliable_mq.console.doing import Doing  # noqa: E402
from reliable_mq.console.figures import ConsoleFigures  # noqa: E402
from reliable_mq.console.file_records import stores_of  # noqa: E402
from reliable_mq.console.file_runs import RUN_FILES  # noqa: E402
from reliable_mq.console.guard import Allow, Door, Oidc, PageGuard  # noqa: E402
from reliable_mq.console.mounted import ConsoleBeside, checked_place, end_with  # noqa: E402
from reliable_mq.console.pages import Pages  # noqa: E402
from reliable_mq.console.rendering import Renderer  # noqa: E402
from reliable_mq.console.saved_filters import SavedFilters  # noqa: E402
from reliable_mq.console.sessions import Seal  # noqa: E402
from reliable_mq.console.sources import ConsoleSources  # noqa: E402
from reliable_mq.console.trace_links import checked_template  # noqa: E402
from reliable_mq.console.users import UserFile  # noqa: E402
from reliable_mq.console.work import Works  # noqa: E402
from reliable_mq.telemetry.families import SampleCollector  # noqa: E402

if TYPE_CHECKING:
    from reliable_mq.console.http_oidc import OidcProvider, OidcSettings


class ConsoleOptions(TypedDict, total=False):
    """Options of a console; see `console_app`."""

    users: Path | str | None
    allow: Allow | None
    broker: str
    secret: str
    trace_url: str
    runs: Path | str | None
    stores: Sequence[str]
    oidc: "OidcSettings | None"
    increment_options: Sequence[str]


@names_checked
def console_app(
    mq: ReliableMQ,
    *,
    users: Path | str | None = None,
    allow: Allow | None = None,
    broker: str = "",
    secret: str = "",
    trace_url: str = "",
    runs: Path | str | None = None,
    stores: Sequence[str] = (),
    oidc: "OidcSettings | None" = None,
    increment_options: Sequence[str] = (),
) -> Starlette:
    """Return the console of an application as an ASGI application.

    Without `users`, `oidc` and `allow`, everybody who reaches it by a name of this machine is an
    admin. The end of its lifespan ends its work. An application that mounts it itself runs that
    lifespan in its own: `async with console.router.lifespan_context(console)`.

    Args:
        mq: the application.
        users: the file of its users: `config/access.json` of a broker, or a file that
            `reliable-mq console --add-user` has made.
        allow: returns the name and the role of who asks, or None; for an application that has its
            own log-in.
        broker: name servers; "": those of the application.
        secret: signs the sessions. Processes that serve one console share it. "": a new one.
        trace_url: the address of a trace, with the placeholder `{trace_id}`, and `{span_id}` if it
            needs it; "": traces are shown without a link.
        runs: the folder of `reconcile --out`: its runs are listed, too.
        stores: folders of brokers' stores at this machine, as "broker-a=DIR" or "DIR": a message
            is read there while its broker is away.
        oidc: a provider of OpenID Connect at which people log in, beside `users` or alone; extra
            `oidc`.
        increment_options: options of `reliable-mq reconcile` for increments that are started from
            a page, such as `["--store", "/var/lib/reliable-mq"]`.

    Raises:
        ConfigurationError: the file of users cannot be read, both ways in are given, `trace_url` is
            no address with the placeholder, a folder is not there, or an option is not for an
            increment.
        ExtraMissing: the extra `console` is not installed, or `oidc`.
    """
    provider = None if oidc is None else _provider_of(oidc)
    door = _door_of(users, allow, provider)
    folder = _folder_of(runs)
    sources = ConsoleSources(mq, broker, folder, stores_of(stores), increment_options)
    seal = Seal(secret.encode() if secret else secrets.token_bytes(32))
    figures = ConsoleFigures()
    hidden = () if folder is not None else (RUN_FILES.name,)
    render = Renderer(mq.name, checked_template(trace_url), hidden)
    works = Works(figures)
    pages = Pages(sources, render, _metrics_of(mq, figures))
    doing = Doing(sources, render, seal, works)
    log_in = [] if provider is None else _log_in_routes(provider, render, seal)

    @asynccontextmanager
    async def closing(_app: Any) -> AsyncIterator[None]:
        yield
        await in_thread(works.close)
        await in_thread(sources.close)
        if provider is not None:
            await in_thread(provider.close)

    return Starlette(
        routes=[*log_in, *pages.routes(), *doing.routes(), *SavedFilters(sources).routes()],
        middleware=[Middleware(PageGuard, door=door, seal=seal, figures=figures)],
        exception_handlers={HTTPException: pages.fault, Exception: pages.fault},
        lifespan=closing,
    )


def mount(app: Any, path: str, *, mq: ReliableMQ, **options: Unpack[ConsoleOptions]) -> Any:
    """Mount the console into an application of Starlette or FastAPI, or beside another one.

    Returns the application to serve. That of Starlette and FastAPI is `app`; an application that
    cannot mount others, such as that of Django, stays as it is, and is a part of the returned one.
    The console starts after the application, and ends before it: its lifespan is inside of that of
    the application. So mount it before the application starts.

    Args:
        app: the application, for ASGI.
        path: where, such as "/mq".
        mq: the application's messaging.
        options: see `console_app`; one of `users`, `oidc` and `allow` is needed.

    Raises:
        ConfigurationError: nobody says who may see it. The address at which the application is
            served is not known here.
    """
    if all(options.get(each) is None for each in ("users", "oidc", "allow")):
        raise ConfigurationError(
            "a mounted console needs users= (a file), oidc= or allow= (a function): else everybody"
            " who reaches the application could use it"
        )
    console = console_app(mq, **options)
    if not hasattr(app, "mount"):
        return ConsoleBeside(app, checked_place(path), console)
    app.mount(checked_place(path), console)
    end_with(app, console)
    return app


def _door_of(
    users: Path | str | None, allow: Allow | None, provider: "OidcProvider | None"
) -> Door:
    if allow is not None and (users is not None or provider is not None):
        raise ConfigurationError("give either allow=, or users= and oidc=")
    return Door(
        UserFile(Path(users)) if users is not None else None,
        allow,
        actor(),
        None if provider is None else Oidc(provider.host, provider.settings.proof),
    )


def _folder_of(runs: Path | str | None) -> Path | None:
    folder = Path(runs) if runs else None
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"--runs {folder}: there is no such folder")
    return folder


def _provider_of(settings: "OidcSettings") -> "OidcProvider":
    from reliable_mq.console.http_oidc import OidcProvider  # noqa: PLC0415 - an extra

    return OidcProvider(settings)


def _log_in_routes(provider: "OidcProvider", render: Renderer, seal: Seal) -> list[BaseRoute]:
    from reliable_mq.console.oidc_pages import OidcPages  # noqa: PLC0415 - an extra

    return OidcPages(provider, render, seal).routes()


def _metrics_of(mq: ReliableMQ, figures: ConsoleFigures) -> Callable[[], tuple[bytes, str]]:
    """Return what serves the figures. A console that nobody scrapes does not load Prometheus."""
    lock = threading.Lock()
    made: list[Any] = []

    def served() -> tuple[bytes, str]:
        from prometheus_client import (  # noqa: PLC0415 - see above
            CONTENT_TYPE_LATEST,
            CollectorRegistry,
            ProcessCollector,
            generate_latest,
        )

        with lock:
            if not made:
                registry = CollectorRegistry()
                ProcessCollector(registry=registry)
                mq.meter(registry).register_databases()
                registry.register(SampleCollector(figures.samples, "console"))
                made.append(registry)
        return generate_latest(made[0]), CONTENT_TYPE_LATEST

    return served
