"""The fields that the type of a payload itself marks as sensitive. Pure.

Receives a type. Returns the names of its fields, at any depth, whose JSON Schema has the format
`password` or is `writeOnly`: pydantic's `SecretStr`, or a field with such an extra.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from reliable_mq.contract.json_schema import schema_of_type
from reliable_mq.errors import UsageError

_PARTS = ("anyOf", "oneOf", "allOf", "prefixItems")


def marked_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the marked fields of a payload type, also their aliases."""
    found: dict[str, None] = {}
    try:
        for schema in (schema_of_type(kind, "reads", ""), schema_of_type(kind, "writes", "")):
            found |= dict.fromkeys(_marked(schema or {}))
        found |= dict.fromkeys(_marked(TypeAdapter(kind).json_schema(by_alias=True)))
    except UsageError:
        return ()
    except Exception:  # noqa: BLE001 - no type of pydantic: its names have no aliases
        return tuple(found)
    return tuple(found)


def _marked(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _marked(each)
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):
            yield from (each for each, part in value.items() if _is_marked(part))
        yield from _marked(value)


def _is_marked(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("format") == "password" or schema.get("writeOnly") is True:
        return True
    parts = [each for name in _PARTS for each in schema.get(name) or ()]
    return any(map(_is_marked, (*parts, schema.get("items"), schema.get("additionalProperties"))))
