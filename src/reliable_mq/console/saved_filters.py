"""Saved filters: names that a person gives to addresses of lists. They are in the browser's cookie.

A cookie needs no table, and no source has to answer for it. It outlives the console, not the
browser: an address can be sent to a colleague anyway. It has a name for each user and application.
What it has is read like any other input.
"""

import base64
import binascii
import hashlib
import json
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from reliable_mq.console.all_lists import BY_NAME
from reliable_mq.console.guard import PageGuard, form_of
from reliable_mq.console.lists import FilterFault, RowList, address, wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import can_be_stored
from reliable_mq.plain_text import printable

FILTERS_MAX, NAME_LENGTH_MAX = 30, 60
COOKIE_LENGTH_MAX = 3_800
"""A browser keeps 4 KiB for a cookie with its name."""
KEPT_SECONDS = 400 * 86_400
"""Browsers keep no cookie longer."""
_LEFT_OUT = ("cursor", "format", "limit")


class SavedFilter(NamedTuple):
    """A filter with a name. `path`: the address of its list."""

    list_name: str
    name: str
    query: dict[str, str]

    @property
    def path(self) -> str:
        """The address of the list with the filter."""
        return address(BY_NAME[self.list_name], self.query)


def cookie_name(application: str, user: str) -> str:
    """Return the name of the cookie with the filters of a user."""
    digest = hashlib.sha256(f"{application}\0{user}".encode("utf-8", "replace")).hexdigest()
    return f"reliable_mq_saved_{digest[:12]}"


def saved_filters(request: Request, application: str, list_name: str = "") -> list[SavedFilter]:
    """Return the filters that the browser of a person keeps, of all lists or of one."""
    user = request.state.person.name
    text = request.cookies.get(cookie_name(application, user), "")
    return [each for each in _read(text) if list_name in ("", each.list_name)]


def _read(text: str) -> list[SavedFilter]:
    """Return what a cookie has; what is no filter is left out."""
    if len(text) > COOKIE_LENGTH_MAX:
        return []
    try:
        padded = text + "=" * (-len(text) % 4)
        found = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError, binascii.Error):
        return []
    rows = found if isinstance(found, list) else []
    return [SavedFilter(*row) for row in rows[:FILTERS_MAX] if _is_filter(row)]


def _is_filter(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    kind, name, query = row
    if not (isinstance(kind, str) and kind in BY_NAME and isinstance(name, str) and _is_name(name)):
        return False
    if not isinstance(query, dict):
        return False
    texts = (*query.keys(), *query.values())
    return all(isinstance(each, str) and can_be_stored(each) for each in texts)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable()


class SavedFilters:
    """Saves filters and takes them away.

    Args:
        sources: the databases that a filter may name.
    """

    def __init__(self, sources: ConsoleSources) -> None:
        self._sources = sources

    def routes(self) -> list[BaseRoute]:
        """Return the addresses and what answers there."""
        return [Route("/saved", self.save, methods=["POST"])]

    async def save(self, request: Request) -> Response:
        """Save the filter of a list under a name, or take a saved one away; lead to its list."""
        form = {name: values[0] for name, values in (await form_of(request)).items()}
        kind = BY_NAME.get(form.get("list", ""))
        name = " ".join(form.get("name", "").split())
        if kind is None or not _is_name(name):
            raise HTTPException(
                400, f"a saved filter has a list, and a name of 1 to {NAME_LENGTH_MAX} characters"
            )
        application = self._sources.mq.name
        kept = [
            each
            for each in saved_filters(request, application)
            if (each.list_name, each.name) != (kind.name, name)
        ]
        query = {} if form.get("remove") else self._query(kind, form.get("query", ""))
        if not form.get("remove"):
            kept.append(SavedFilter(kind.name, name, query))
        if len(kept) > FILTERS_MAX:
            raise HTTPException(409, f"at most {FILTERS_MAX} filters can be saved: remove one")
        text = base64.urlsafe_b64encode(json.dumps(kept).encode()).decode().rstrip("=")
        if len(text) > COOKIE_LENGTH_MAX:
            raise HTTPException(409, "the saved filters are too long for a cookie: remove one")
        root = request.scope.get("root_path", "")
        response = RedirectResponse(f"{root}{address(kind, query)}", 303)
        guard: PageGuard = request.state.guard
        who = cookie_name(application, request.state.person.name)
        MutableHeaders(raw=response.raw_headers).append(
            "Set-Cookie", guard.cookie_line(request, who, text, KEPT_SECONDS)
        )
        return response

    def _query(self, kind: RowList, text: str) -> dict[str, str]:
        """Return a filter as it can be saved: "-1h" stays what it is.

        Raises:
            HTTPException: 400: the list does not take it.
        """
        query = {name: value for name, value in parse_qsl(text) if name not in _LEFT_OUT}
        try:
            wanted_of(kind, [*query.items()], list(self._sources.databases))
        except FilterFault as error:
            raise HTTPException(400, printable(str(error), 300)) from error
        return query
