"""The JSON Schema of a payload type: what a handler reads, and what a sender writes. Pure.

A reader accepts a body without a field that has a default. A writer writes this field always. So
one type has two schemas.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from reliable_mq.errors import UsageError, error_text

Json = dict[str, Any]
Use = Literal["reads", "writes"]


def schema_of_type(kind: Any, use: Use, what: str) -> Json | None:
    """Return the JSON Schema (2020-12) of a payload type; None: its bodies are bytes.

    Args:
        kind: the type in an annotation.
        use: "reads" for a handler, "writes" for a sender.
        what: names the payload in errors.

    Raises:
        UsageError: the type has no JSON Schema.
    """
    if kind is bytes:
        return None
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return msgspec.json.schema(kind)
        mode: Any = "validation" if use == "reads" else "serialization"
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind.model_json_schema(
                mode=mode, by_alias=False, schema_generator=_PayloadSchema
            )
        return TypeAdapter(kind).json_schema(
            mode=mode, by_alias=False, schema_generator=_PayloadSchema
        )
    except Exception as error:  # noqa: BLE001 - msgspec may know the type
        try:
            return msgspec.json.schema(kind)
        except Exception:  # noqa: BLE001 - the first error says more
            raise UsageError(f"{what}: no JSON Schema of {kind!r}: {error_text(error)}") from error


class _PayloadSchema(GenerateJsonSchema):
    """Says of a written field with a default that it is required: it is always written."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        is_of_class = field["type"] in {"model-field", "dataclass-field"}
        if self.mode == "serialization" and is_of_class:
            return not field.get("serialization_exclude")
        return super().field_is_required(field, total)


def refs_moved(schema: Json, target: str) -> tuple[Json, dict[str, Json]]:
    """Return a schema and its `$defs`, with every `$ref` to one of them led to `target` + name.

    Args:
        schema: the schema.
        target: where the definitions will be, as "#/components/schemas/".
    """
    parts: Mapping[str, Json] = schema.get("$defs", {})
    rest = {name: value for name, value in schema.items() if name != "$defs"}
    moved = {name: _moved(part, target) for name, part in parts.items()}
    return _moved(rest, target), moved


def _moved(value: Any, target: str) -> Any:
    if isinstance(value, list):
        return [_moved(each, target) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _moved(each, target) for name, each in value.items()}
    reference = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        found["$ref"] = target + reference.removeprefix("#/$defs/")
    return found
