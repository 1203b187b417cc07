"""Shows the body of a message to a person, by its type. Pure.

Receives bytes and a media type. Returns text: JSON in lines, text as it is, or bytes as hexadecimal
digits. Never more than 64 KiB of the body. Sensitive fields are masked, and a body that cannot be
looked into is not shown then.
"""

import json
from typing import NamedTuple

from reliable_mq.plain_text import printable_lines
from reliable_mq.sensitive import NOTHING_SENSITIVE, SensitiveFields

SHOWN_BYTES_MAX = 65_536
_HEX_WIDTH = 16
_HEX_BYTES_MAX = 4_096


class Payload(NamedTuple):
    """A body for a page.

    `size`: all its bytes. `shown`: how many of them are shown. `is_masked`: sensitive fields have
    masks. `is_hidden`: nothing is shown, because it may have sensitive fields.
    """

    kind: str
    text: str
    size: int
    shown: int
    is_masked: bool = False
    is_hidden: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether the page shows less than the whole body."""
        return self.shown < self.size


def payload_of(
    body: bytes, content_type: str = "", fields: SensitiveFields = NOTHING_SENSITIVE
) -> Payload:
    """Return a body as a page shows it."""
    if not fields:
        return _as_it_is(body, content_type)
    masked = fields.masked(body)
    if masked is None:
        return Payload("payload", "", len(body), 0, is_hidden=True)
    found = _as_it_is(masked.encode(), content_type)
    shown = min(found.shown, len(body)) if found.is_cut else len(body)
    return found._replace(size=len(body), shown=shown, is_masked=masked.encode() != body)


def _as_it_is(body: bytes, content_type: str) -> Payload:
    size, part = len(body), body[:SHOWN_BYTES_MAX]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # A character that is cut at the end of the part is no sign of binary content.
        if size <= len(part) or error.start < len(part) - 3:
            return _hex(body)
        part = part[: error.start]
        text = part.decode()
    if "\0" in text:
        return _hex(body)
    is_json = "json" in content_type or text[:1] in ("{", "[")
    if is_json and size == len(part):
        try:
            lines = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
        else:
            if len(lines) <= 4 * SHOWN_BYTES_MAX:
                return Payload("JSON", printable_lines(lines), size, size)
    return Payload("text", printable_lines(text), size, len(part))


def _hex(body: bytes) -> Payload:
    part = body[:_HEX_BYTES_MAX]
    lines = []
    for start in range(0, len(part), _HEX_WIDTH):
        row = part[start : start + _HEX_WIDTH]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{_HEX_WIDTH * 3}} {letters}")
    return Payload("binary", "\n".join(lines), len(body), len(part))
