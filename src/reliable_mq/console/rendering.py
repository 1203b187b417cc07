"""Makes pages from templates. All text is escaped; unprintable characters are shown as escapes."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from reliable_mq.cli.printing import age_of
from reliable_mq.console.all_lists import ROW_LISTS
from reliable_mq.console.lists import address
from reliable_mq.console.signs import span
from reliable_mq.plain_text import printable

STATIC = Path(__file__).parent / "static"
CELL_LENGTH_MAX = 200
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the content and the media type of each static file, by its name."""
    return {
        path.name: (path.read_bytes(), MEDIA_TYPES[path.suffix])
        for path in sorted(STATIC.iterdir())
        if path.suffix in MEDIA_TYPES
    }


def version_of(files: Mapping[str, tuple[bytes, str]]) -> str:
    """Return a text that changes when a file does: browsers keep files by it."""
    digest = hashlib.sha256()
    for content, _ in files.values():
        digest.update(content)
    return digest.hexdigest()[:12]


def shown(value: object, length_max: int = CELL_LENGTH_MAX) -> str:
    """Return a value as a page shows it."""
    return "" if value is None else printable(str(value), length_max)


def as_typed(value: object) -> Markup:
    """Return a value for a field of a form, which sends it back as it is.

    Characters that a page does not show are references: an emoji may have some inside.
    """
    text = escape("" if value is None else str(value))
    parts = (each if each.isprintable() else f"&#{ord(each)};" for each in str(text))
    return Markup("".join(parts))  # noqa: S704 - escaped above


def exact_time(moment: datetime | None) -> str:
    """Return a time to the millisecond, in UTC."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def short_time(moment: datetime | None) -> str:
    """Return a time to the second, in UTC."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def ago(moment: datetime | None) -> str:
    """Return how long ago a time was, or in how long it is."""
    if moment is None:
        return ""
    now = datetime.now(UTC)
    return f"in {age_of(now, moment)}" if moment > now else f"{age_of(moment, now)} ago"


def bytes_text(count: int) -> str:
    """Return a number of bytes as a person says it."""
    for length, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} bytes"


def took(seconds: float) -> str:
    """Return how long something took: "340 ms", "1.2 s", "5 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else span(seconds)


def spark(counts: Sequence[float], width: int = 240, height: int = 40) -> str:
    """Return the points of a line through counts, the oldest at the left."""
    top = max(max(counts, default=0), 1)
    step = width / max(len(counts) - 1, 1)
    return " ".join(
        f"{number * step:.1f},{height - 2 - (height - 4) * count / top:.1f}"
        for number, count in enumerate(counts)
    )


class Renderer:
    """Makes pages.

    Args:
        application: the name of the application, for the head of each page.
        trace_url: the address of a trace, see `trace_links`; "": there is none.
        hidden: the names of lists that the menu leaves out.
    """

    def __init__(self, application: str, trace_url: str = "", hidden: Collection[str] = ()) -> None:
        self.trace_url = trace_url
        self.files = static_files()
        self.version = version_of(self.files)
        environment = Environment(
            loader=PackageLoader("reliable_mq.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {
            "shown": shown,
            "as_typed": as_typed,
            "exact": exact_time,
            "short": short_time,
            "ago": ago,
            "span": span,
            "bytes": bytes_text,
            "spark": spark,
            "took": took,
        }
        environment.globals |= {
            "application": application,
            "version": self.version,
            "lists": [each for each in ROW_LISTS if each.name not in hidden],
            "address": address,
        }
        self._environment = environment

    def page(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page.

        Args:
            request: of a browser.
            template: the name of its file.
            status: the status of HTTP.
            **values: what the template shows.
        """
        state = request.state
        text = self._environment.get_template(template).render(
            root=request.scope.get("root_path", ""),
            path=request.scope["path"],
            person=getattr(state, "person", None),
            has_users=state.guard.has_users,
            token=state.guard.token(state.session),
            q=values.pop("q", ""),
            now=datetime.now(UTC),
            **values,
        )
        # A lone surrogate has no bytes in UTF-8.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)
