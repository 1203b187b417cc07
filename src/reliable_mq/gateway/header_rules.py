"""Which headers a request may have. Pure.

Receives the headers of one request, or those behind its body. Returns why they are malformed. Only
the stream of a malformed request ends, with `PROTOCOL_ERROR`. What is well formed and not gRPC has
an answer of HTTP: see `answer_heads`.
Source: RFC 9113, 8.1 to 8.3; gRFC A41.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from reliable_mq.gateway.hpack import Headers

PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
_NEEDED = frozenset((b":method", b":scheme", b":path"))
_OF_CONNECTIONS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_no_value = re.compile(rb"[\0\r\n]|\A[ \t]|[ \t]\Z").search

_is_grpc = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE | re.DOTALL).fullmatch


def is_grpc(content_type: bytes) -> bool:
    """Return whether a call has the content type of gRPC, and not that of gRPC-Web."""
    return _is_grpc(content_type) is not None


def why_malformed(headers: Headers) -> str:
    """Return why the headers of a request are malformed; "": they are not."""
    names, values = zip(*headers, strict=True) if headers else ((), ())
    shape = _shape_of(names)
    if shape.why:
        return shape.why
    if shape.te is not None and values[shape.te] != b"trailers":
        return "te is something else than trailers"
    if not values[shape.path]:
        return ":path is empty"
    # Most requests pass here: each look is one search in all values.
    text = b"\n".join((b"", *values, b""))
    if (
        text.count(b"\n") == len(values) + 1
        and b"\r" not in text
        and b"\0" not in text
        and b"\t" not in text
        and b"\n " not in text
        and b" \n" not in text
    ):
        return ""
    return next(filter(None, map(_why_no_value, names, values)), "")


class HeaderShape(NamedTuple):
    """What the names of headers say: why they are malformed, and where two of them are."""

    why: str
    te: int | None = None
    path: int = 0


@lru_cache(maxsize=64)  # a client sends the same names with each call
def _shape_of(names: tuple[bytes, ...]) -> HeaderShape:
    found: dict[bytes, int] = {}
    te: int | None = None
    for at, name in enumerate(names):
        if name[:1] == b":":
            if at > len(found):
                return HeaderShape(f"{_shown(name)} comes behind other headers")
            if name in found:
                return HeaderShape(f"{_shown(name)} comes twice")
            if name not in PSEUDO:
                return HeaderShape(f"{_shown(name)} is no header of a request")
            found[name] = at
        elif why := _why_no_name(name):
            return HeaderShape(why)
        elif name == b"te":
            if te is not None:
                return HeaderShape("te comes twice")
            te = at
    if missing := _NEEDED - found.keys():
        return HeaderShape(f"{_shown(min(missing))} is missing")
    return HeaderShape("", te, found[b":path"])


def why_no_trailers(headers: Headers) -> str:
    """Return why headers behind a body are malformed; "": they are not."""
    for name, value in headers:
        if name[:1] == b":":
            return f"{_shown(name)} comes behind the body"
        if why := _why_no_name(name) or _why_no_value(name, value):
            return why
    return ""


def _why_no_name(name: bytes) -> str:
    if not _is_name(name):
        return f"{_shown(name)} is no name of a header in lower case"
    if name in _OF_CONNECTIONS:
        return f"{_shown(name)} belongs to a connection of HTTP/1"
    return ""


def _why_no_value(name: bytes, value: bytes) -> str:
    return f"the value of {_shown(name)} cannot be one" if _is_no_value(value) else ""


def _shown(name: bytes) -> str:
    return ascii(name[:40].decode("latin-1"))
