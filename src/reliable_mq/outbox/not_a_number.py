"""Find a float that JSON has not: NaN or infinity. Writers of JSON make null of it, in silence.

Receives a payload that was written. Values only.
"""

import dataclasses
import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass

_WRITES_IT = ("strings", "constants")


def not_a_number_in(value: Any, place: str = "") -> str:
    """Return the first place with its value, such as "items[2].price is nan"; "": there is none.

    What a serializer of pydantic makes of a value counts, not the value.
    """
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{place} is {value}".strip()
    for name, part in _parts(value, place):
        if isinstance(part, str | bytes | int):
            continue
        if found := not_a_number_in(part, name):
            return found
    return ""


def _parts(value: Any, place: str) -> Iterable[tuple[str, Any]]:
    kind: Any = type(value)
    if isinstance(value, BaseModel):
        if value.model_config.get("ser_json_inf_nan") in _WRITES_IT:
            return ()
        value = value.model_dump(mode="json")
    elif is_pydantic_dataclass(kind):
        value = _adapter(kind).dump_python(value, mode="json")
    elif dataclasses.is_dataclass(kind):
        names = (each.name for each in dataclasses.fields(value))
        value = {name: getattr(value, name, None) for name in names}
    elif isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name, None) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return ((f"{place}.{key}".lstrip("."), each) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ((f"{place}[{number}]", each) for number, each in enumerate(value))
    return ()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
