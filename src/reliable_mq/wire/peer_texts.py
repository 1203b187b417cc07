"""Texts that a peer sends to a server: JSON and properties, read within a budget.

What is plain JSON is read at some 100 MB/s. The forms that only fastjson reads, and properties,
are read here a hundred times slower, and whoever reads keeps all other peers waiting.
"""

from typing import Any, TypeVar

from reliable_mq.limits import SLOW_TEXT_SIZE_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_properties import parse_properties

_T = TypeVar("_T")


def read_json(text: bytes | str) -> Any:  # JSON is any value
    """Return the value that a text spells; see `fastjson.loads`.

    Raises:
        ValueError: when it spells none, or is no plain JSON and longer than `limits` says.
    """
    return fastjson.loads(text, slow_size_max=SLOW_TEXT_SIZE_MAX)


def read_json_as(text: bytes | str, kind: type[_T]) -> _T:
    """Return the value that a text spells, as a `kind`; see `fastjson.decode`.

    Raises:
        ValueError: as in `read_json`.
        msgspec.ValidationError: when it spells another one.
    """
    return fastjson.decode(text, kind, slow_size_max=SLOW_TEXT_SIZE_MAX)


def read_properties(text: bytes) -> dict[str, str]:
    """Return the properties that a text holds; see `parse_properties`.

    Raises:
        ValueError: when it is no UTF-8, or longer than `limits` says.
    """
    if len(text) > SLOW_TEXT_SIZE_MAX:
        raise ValueError(
            f"properties of {len(text)} bytes, at most {SLOW_TEXT_SIZE_MAX} are allowed"
        )
    return parse_properties(text.decode())
