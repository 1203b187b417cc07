"""The reference page of extras: what each installs, and how large it is in this environment."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.documentation.declared import code, table

ROOT = Path(__file__).parents[2]
MEGABYTE = 1_000_000
OURS = "reliable-mq"

HEAD = """# Extras

`pip install 'reliable-mq[postgres,migrations]'` installs two extras. If a module is missing, the
error names its extra.

"""

#: what an extra is for; the extras themselves are those of pyproject.toml
PURPOSES = {
    "spark": "reconciliation, and the data sources for Spark",
    "postgres": "PostgreSQL",
    "mysql": "MySQL and MariaDB",
    "sqlite": "asyncio with SQLite; the synchronous driver is part of Python",
    "migrations": "`reliable-mq migrate` (Alembic)",
    "embedded": "PostgreSQL and Valkey from wheels, for tests and the demo",
    "dev-server": "`reliable-mq dev`: servers from wheels, and reload on a change",
    "demo": "the data of `reliable-mq demo`",
    "periodic": "`@mq.periodic`: messages at the ticks of a schedule",
    "prometheus": "`PrometheusMiddleware` and `--metrics-port`",
    "otel": "`OpenTelemetryMiddleware`, and trace contexts by OpenTelemetry",
    "observability": "both of these",
    "console": "`reliable-mq console`: pages for the people on call",
    "oidc": "log-in to the console at a provider of OpenID Connect",
    "grpc": "`reliable-mq proxy` and `--grpc-port`: Apache's 5.x clients",
    "lz4": "messages that are compressed with LZ4",
    "zstd": "messages that are compressed with Zstandard",
    "mail": "mails with templates of your own",
    "yaml": "`reliable-mq access import`: accounts of RocketMQ 4.x",
    "fastapi": "`reliable_mq.contrib.fastapi`",
    "flask": "`reliable_mq.contrib.flask`",
    "django": "`reliable_mq.contrib.django`",
    "litestar": "`reliable_mq.contrib.litestar`",
    "docs": "building this site",
    "all": "everything that users need",
}


def extras() -> dict[str, list[str]]:
    """Return the extras of pyproject.toml but `dev`, with their requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return {name: wanted for name, wanted in found.items() if name != "dev"}


def packages_of(requirements: Iterable[str]) -> set[str]:
    """Return the installed packages that these requirements lead to, but this one."""
    found, seen = set[str](), set[tuple[str, str]]()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        made = _installed(name)
        if made is None:
            continue
        found.add(name)
        for each in {"", *wanted.extras} - {of for at, of in seen if at == name}:
            seen.add((name, each))
            waiting += [(Requirement(text), each) for text in made.requires or ()]
    return found - {OURS}


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def size_of(packages: Iterable[str]) -> int:
    """Return the bytes of the files of these packages, without compiled Python."""
    return sum(map(_size_of_one, packages))


@cache
def _size_of_one(name: str) -> int:
    """Return the bytes of one package: many extras need the same ones, of thousands of files."""
    paths: Iterable[Any] = (each.locate() for each in distribution(name).files or ())
    return sum(path.stat().st_size for path in paths if path.suffix != ".pyc" and path.is_file())


def page() -> str:
    """Return the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = packages_of(project["dependencies"])
    own = sum(
        path.stat().st_size
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    core_size = size_of(core) + own
    rows = [["none", "the core, and SQLite", "", f"{core_size / MEGABYTE:.0f} MB"]]
    for name, wanted in extras().items():
        found = packages_of(wanted)
        more = size_of(found - core)
        shown = ", ".join(re.split(r"[<>=;~! ]", each, maxsplit=1)[0] for each in wanted)
        rows.append([code(name), PURPOSES[name], shown, f"+ {more / MEGABYTE:.1f} MB"])
    return (
        HEAD
        + table(("extra", "for", "packages", "installed size"), rows)
        + "\nThe size is what the extra adds to the core: the files of its packages and of what "
        "they need, "
        "without compiled Python, in the environment that built this page.\n"
    )
