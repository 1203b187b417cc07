"""Content types as RFC 9110 defines them: `type/subtype; name=value`. Pure."""

import re
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from reliable_mq.errors import UsageError

CONTENT_TYPE_LENGTH_MAX = 127
"""Characters: the width of the stub's column."""

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_KIND = re.compile(rf"\s*({_WORD})/({_WORD})\s*")
_PARAMETER = re.compile(rf';\s*(?:({_WORD})=(?:({_WORD})|"((?:[^"\\]|\\.)*)")\s*)?')


class MediaType(msgspec.Struct, frozen=True):
    """A parsed content type. `kind` and parameter names are in lower case."""

    kind: str
    parameters: Mapping[str, str]

    @property
    def charset(self) -> str:
        """The encoding of text in the body. Default UTF-8."""
        return self.parameters.get("charset", "utf-8")

    @property
    def is_json(self) -> bool:
        """Whether the body is JSON: `application/json`, or a subtype that ends in `+json`."""
        return self.kind == "application/json" or self.kind.endswith("+json")


@lru_cache(maxsize=512)
def media_type_of(text: str) -> MediaType:
    """Parse a content type.

    Raises:
        UsageError: it is not a content type, or longer than its column.
    """
    if not isinstance(text, str):
        raise UsageError(f"content type {text!r:.100} is not a text")
    kind = _KIND.match(text)
    if kind is None or len(text) > CONTENT_TYPE_LENGTH_MAX or not text.isprintable():
        raise UsageError(
            f"content type {text[:200]!r}: type/subtype; name=value is needed, "
            f"{CONTENT_TYPE_LENGTH_MAX} characters at most"
        )
    parameters: dict[str, str] = {}
    position = kind.end()
    while position < len(text):
        found = _PARAMETER.match(text, position)
        if found is None:
            raise UsageError(f"content type {text!r}: its parameters cannot be read")
        name, token, quoted = found.groups()
        if name is not None:
            value = token if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            parameters.setdefault(name.lower(), value)
        position = found.end()
    return MediaType(f"{kind[1]}/{kind[2]}".lower(), parameters)
