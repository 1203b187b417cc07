"""Texts from a peer, JSON and properties, decoded on a server within a size limit.

Standard JSON is decoded at about 100 MB/s. Properties, and JSON that only fastjson accepts, take a
hundred times longer, and meanwhile all other peers wait. So these forms have a size limit.
"""

from typing import Any, TypeVar

from reliable_mq.limits import SLOW_TEXT_SIZE_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_properties import parse_properties

_T = TypeVar("_T")


def read_json(text: bytes | str) -> Any:  # JSON is any value
    """Return the value of a JSON text; see `fastjson.loads`.

    Raises:
        ValueError: when the text is not JSON, or is not standard JSON and longer than
            SLOW_TEXT_SIZE_MAX.
    """
    return fastjson.loads(text, slow_size_max=SLOW_TEXT_SIZE_MAX)


def read_json_as(text: bytes | str, kind: type[_T]) -> _T:
    """Return the value of a JSON text as a `kind`; see `fastjson.decode`.

    Raises:
        ValueError: as in `read_json`.
        msgspec.ValidationError: when the value is not a `kind`.
    """
    return fastjson.decode(text, kind, slow_size_max=SLOW_TEXT_SIZE_MAX)


def read_properties(text: bytes) -> dict[str, str]:
    """Return the properties in a text; see `parse_properties`.

    Raises:
        ValueError: when the text is not UTF-8, or longer than SLOW_TEXT_SIZE_MAX.
    """
    if len(text) > SLOW_TEXT_SIZE_MAX:
        raise ValueError(
            f"properties of {len(text)} bytes, at most {SLOW_TEXT_SIZE_MAX} are allowed"
        )
    return parse_properties(text.decode())
