"""The steps of a person who lets something be done: choose, look at the preview, start, wait."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from httpx2 import Client
from tests.waiting import until

WHY = "the outage of yesterday"


def field(page: str, name: str) -> str:
    """Return the value of a hidden field of a page."""
    found = re.search(f'name="{name}" value="([^"]*)"', page)
    assert found, f"the page has no field {name}: {page[:3000]}"
    return html.unescape(found[1])


def look(
    client: Client,
    deed: str,
    *,
    ids: Sequence[str] = (),
    query: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Any:
    """Send the form of a list: the marked rows, or all that a filter matches."""
    form: dict[str, Any] = {"deed": deed, "token": field(client.get("/topics").text, "token")}
    form |= (
        {"scope": "marked", "id": [quote(each, safe="") for each in ids]}
        if ids
        else {"scope": "all"}
    )
    form["query"] = urlencode(query or {})
    form |= {f"more-{name}": value for name, value in (more or {}).items()}
    return client.post("/do", data=form)


def start(
    client: Client, preview: Any, why: str = WHY, rate: str = "10000", typed: str = ""
) -> Any:
    """Start what a preview shows."""
    assert preview.status_code == 200, preview.text
    form = {name: field(preview.text, name) for name in ("token", "sealed")}
    return client.post("/do/start", data=form | {"why": why, "rate": rate, "typed": typed})


def state_of(client: Client, place: str) -> dict[str, Any]:
    """Return work as JSON."""
    return dict(client.get(f"{place}?format=json").json())


def ended(client: Client, started: Any) -> dict[str, Any]:
    """Wait for the end of work; return it."""
    assert started.status_code == 303, started.text
    place = started.headers["location"]
    until(lambda: state_of(client, place)["state"] != "running")
    return state_of(client, place)


def done(client: Client, deed: str, **chosen: Any) -> dict[str, int]:
    """Let a deed be done; return how many rows have each outcome."""
    found = ended(client, start(client, look(client, deed, **chosen)))
    assert found["state"] == "ended"
    return {name: count for name, count in found["counts"].items() if count}
