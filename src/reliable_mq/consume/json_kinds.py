"""Which types msgspec can never read from JSON. Receives a type; returns the part of it that fails.

msgspec accepts any class of which it knows nothing. Then each message would be a dead letter.
"""

from types import NoneType
from typing import Any

from msgspec import inspect

_OF_JSON = (dict, list, str, int, float, bool, NoneType)


def never_in_json(wanted: Any) -> type | None:
    """Return the class in this type that no value of JSON is an object of; None: there is none.

    Fields of structs are not examined: they may be missing in the JSON.

    Raises:
        TypeError: msgspec cannot read the type at all.
    """
    waiting = [inspect.type_info(wanted)]
    while waiting:
        each = waiting.pop()
        match each:
            case inspect.CustomType(cls=kind) if isinstance(kind, type) and not _may_be(kind):
                return kind
            case inspect.UnionType(types=types):
                waiting += types
            case inspect.DictType(key_type=key, value_type=value):
                waiting += (key, value)
            case inspect.TupleType(item_types=types):
                waiting += types
            case inspect.CollectionType(item_type=item):
                waiting.append(item)
    return None


def _may_be(kind: type) -> bool:
    """Return whether a value of JSON may be an object of a class: `Hashable`, `Number`."""
    try:
        return any(issubclass(each, kind) for each in _OF_JSON)
    except TypeError:  # a protocol with more than methods, which is not asked
        return True
