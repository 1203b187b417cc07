"""The business key: messages with the same key must have one effect. Pure.

Receives a value from a payload. Returns its readable text, and the digest for comparisons. Refuses
a value that cannot be a key: a message with an unknown key must not count as another one.
"""

import hashlib
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from reliable_mq.database.row_values import SHOWN_LENGTH_MAX
from reliable_mq.errors import KeyInvalid
from reliable_mq.plain_text import a_kind


class BusinessKey(msgspec.Struct, frozen=True):
    """The key in readable form (cut, printable), and the SHA-256 of the whole key.

    Only digests are compared. So long keys never become equal, nor do keys that a database treats
    as equal (upper and lower case, trailing blanks, accents).
    """

    shown: str
    digest: str


def business_key(value: Any) -> BusinessKey:
    """Return the key of a value: a str, int, UUID, Decimal, date, Enum, or several in a tuple.

    Raises:
        KeyInvalid: it is None, empty, or of a type that may be written in several ways (float,
            bool, bytes, a dict).
    """
    text = _text(value)
    shown = "".join(char if char.isprintable() else " " for char in text[:SHOWN_LENGTH_MAX])
    return BusinessKey(shown, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return _text(value.value)
    if isinstance(value, tuple | list):
        if not value:
            raise KeyInvalid("the key is empty")
        return msgspec.json.encode([_text(each) for each in value]).decode()
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"  # 1.0 and 1.00 are the same amount
    if isinstance(value, str | UUID | date) or (
        isinstance(value, int) and not isinstance(value, bool)
    ):
        text = str(value)
        if not text.strip():
            raise KeyInvalid("the key is empty")
        return text
    if value is None:
        raise KeyInvalid("the key is None")
    raise KeyInvalid(f"{a_kind(value)} cannot be a key: {value!r:.80}")
