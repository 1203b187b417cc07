"""The link from a message to its trace, from the header `traceparent` (W3C Trace Context). Pure."""

import re
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from reliable_mq.errors import ConfigurationError

TRACE_ID, SPAN_ID = "{trace_id}", "{span_id}"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_NOUGHT = re.compile(r"0+")
_LENGTH_MAX = 2_000


class TraceLink(NamedTuple):
    """The trace of a message. `span_id`: of its sender. `url` "": the console has no template."""

    trace_id: str
    span_id: str
    url: str


def trace_link(traceparent: str, template: str) -> TraceLink | None:
    """Return the trace that a header names; None: it names none.

    Args:
        traceparent: the header.
        template: see `checked_template`; "": there is no link.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None or any(_NOUGHT.fullmatch(each) for each in found.groups()):
        return None
    trace_id, span_id = found.groups()
    url = template.replace(TRACE_ID, quote(trace_id)).replace(SPAN_ID, quote(span_id))
    return TraceLink(trace_id, span_id, url)


def checked_template(template: str) -> str:
    """Return the address of traces, with the placeholder `{trace_id}`; "" for "".

    Raises:
        ConfigurationError: it is no address of HTTP, or lacks the placeholder.
    """
    if not template:
        return ""
    form = "write it as https://traces.example/trace/{trace_id}"
    if len(template) > _LENGTH_MAX or not template.isprintable() or " " in template:
        raise ConfigurationError(f"the address of traces has characters that no URL has: {form}")
    try:
        parts = urlsplit(template)
        host = parts.hostname
    except ValueError:
        parts, host = None, None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"the address of traces begins with http:// or https://: {form}")
    rest = template.replace(TRACE_ID, "").replace(SPAN_ID, "")
    if TRACE_ID not in template or "{" in rest or "}" in rest or "{" in parts.netloc:
        raise ConfigurationError(
            f"the address of traces has {TRACE_ID} behind its host, and perhaps {SPAN_ID}: {form}"
        )
    if "@" in parts.netloc:
        raise ConfigurationError("the address of traces has a password: everybody would see it")
    return template
