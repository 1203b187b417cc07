"""What two messages have in common that must have one effect: the business key. Pure.

Receives a value out of a payload; hands on the text and the digest by which it is compared.
Refuses what is no key, because a message whose key is unknown must not pass for another one.
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


class BusinessKey(msgspec.Struct, frozen=True):
    """A key as people read it (cut, printable), and the SHA-256 of all of it, by which it counts.

    The digest is compared, so neither its length nor a database's idea of upper and lower case,
    trailing blanks or accents makes two keys one.
    """

    shown: str
    digest: str


def business_key(value: Any) -> BusinessKey:
    """Return the key of a value: a str, int, UUID, Decimal, date, Enum, or several in a tuple.

    Raises:
        KeyInvalid: when it is None, empty, or of a type that two sides may write differently
            (float, bool, bytes, a dict).
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
        return f"{value.normalize():f}"  # 1.0 and 1.00 are one amount
    if isinstance(value, str | UUID | date) or (
        isinstance(value, int) and not isinstance(value, bool)
    ):
        text = str(value)
        if not text.strip():
            raise KeyInvalid("the key is empty")
        return text
    if value is None:
        raise KeyInvalid("the key is None")
    raise KeyInvalid(f"a key is no {type(value).__name__}: {value!r:.80}")
