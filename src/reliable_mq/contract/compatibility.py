"""Whether everything that one side writes is accepted by what the other side reads. Pure.

Receives two JSON Schemas. Returns one sentence for each way in which a written body may be refused.
What cannot be compared counts as a fault if it differs: an unknown change is no compatible change.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Json = Mapping[str, Any]

_DEPTH_MAX = 60
_WORDS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$comment", "$schema"}
)
_WORDS_OF_USE = frozenset({"readOnly", "writeOnly", "$defs", "$id", "discriminator"})
_HANDLED = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum"}
    | {"const", "anyOf", "oneOf", "allOf", "$ref", "minItems", "maxItems", "minLength"}
    | {"maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minProperties", "maxProperties", "uniqueItems"}
)
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


class SchemaFault(NamedTuple):
    """Why a body may be refused. `path`: where in the body, as `$.customer.name`."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def schema_faults(reader: Json, writer: Json) -> list[SchemaFault]:
    """Return why a reader may refuse what a writer writes; empty: it accepts all of it.

    Args:
        reader: the JSON Schema of what is read.
        writer: the JSON Schema of what is written.
    """
    return list(_Comparison(reader, writer).faults(reader, writer, "$", 0))


class _Comparison:
    """Compares parts of two schemas; a pair that is being compared is not compared again."""

    def __init__(self, reader: Json, writer: Json) -> None:
        self._reader = reader
        self._writer = writer
        self._open: dict[tuple[str, str], object] = {}  # its values keep their `id`

    def faults(self, reader: Any, writer: Any, path: str, depth: int) -> Iterator[SchemaFault]:
        if reader is True or reader == {} or writer is False:
            return
        if reader is False:
            yield SchemaFault(path, "is written, and is not allowed")
            return
        writer = {} if writer is True else writer
        pair = (_place_of(reader), _place_of(writer))
        if pair in self._open:
            return
        self._open[pair] = reader, writer
        try:
            reader = _resolved(reader, self._reader)
            writer = _resolved(writer, self._writer)
            if depth > _DEPTH_MAX:
                yield SchemaFault(path, "is nested too deeply to compare")
                return
            yield from self._resolved_faults(reader, writer, path, depth + 1)
        finally:
            del self._open[pair]

    def _resolved_faults(
        self, reader: Json, writer: Json, path: str, depth: int
    ) -> Iterator[SchemaFault]:
        for part in reader.get("allOf", ()):
            yield from self.faults(part, writer, path, depth)
        if "allOf" in writer:
            writer = _merged([_resolved(each, self._writer) for each in writer["allOf"]], writer)
        if written := _alternatives(writer):
            beside = _beside_alternatives(writer)
            for each in written:
                part = {"allOf": [beside, each]} if beside and each is not True else each
                yield from self.faults(reader, part, path, depth)
            return
        if accepted := _alternatives(reader):
            yield from self._none_of(accepted, writer, path, depth)
            if beside := _beside_alternatives(reader):
                yield from self._resolved_faults(beside, writer, path, depth)
            return
        types = _types(writer)
        if refused := sorted(types - _accepted_types(reader)):
            words = " or ".join(sorted(_accepted_types(reader)))
            yield SchemaFault(path, f"may be {' or '.join(refused)}, and must be {words}")
            return
        yield from _value_faults(reader, writer, path)
        yield from _limit_faults(reader, writer, path, types)
        if "object" in types:
            yield from self._object_faults(reader, writer, path, depth)
        if "array" in types:
            yield from self._array_faults(reader, writer, path, depth)
        yield from _other_faults(reader, writer, path)

    def _none_of(
        self, accepted: Sequence[Any], writer: Json, path: str, depth: int
    ) -> Iterator[SchemaFault]:
        """Return why none of a reader's alternatives accepts what is written."""
        types = _types(writer)
        if len(types) > 1:  # each type may have an alternative of its own
            for each in sorted(types):
                yield from self.faults({"anyOf": accepted}, {**writer, "type": each}, path, depth)
            return
        found = [list(self.faults(each, writer, path, depth)) for each in accepted]
        if all(found):
            yield min(found, key=lambda faults: (len(faults), -len(faults[0].path)))[0]

    def _object_faults(
        self, reader: Json, writer: Json, path: str, depth: int
    ) -> Iterator[SchemaFault]:
        read, written = reader.get("properties", {}), writer.get("properties", {})
        always = set(writer.get("required", ()))
        for name in reader.get("required", ()):
            if name not in always:
                is_known = "is not always written" if name in written else "is not written"
                yield SchemaFault(f"{path}.{name}", f"{is_known}, and is required")
        more_read = reader.get("additionalProperties", True)
        more_written = writer.get("additionalProperties", True)
        for name, part in written.items():
            if name in read:
                yield from self.faults(read[name], part, f"{path}.{name}", depth)
            elif more_read is not True:
                yield from self.faults(more_read, part, f"{path}.{name}", depth)
        # A type says nothing of other fields: its writer writes none, unless it is a mapping.
        says_more = "additionalProperties" in writer and more_written is not False
        if says_more or not (written or more_written is False):
            for name in read.keys() - written.keys():
                yield from self.faults(read[name], more_written, f"{path}.{name}", depth)
            yield from self.faults(more_read, more_written, f"{path}.*", depth)

    def _array_faults(
        self, reader: Json, writer: Json, path: str, depth: int
    ) -> Iterator[SchemaFault]:
        read, written = reader.get("prefixItems", ()), writer.get("prefixItems", ())
        rest_read, rest_written = reader.get("items", True), writer.get("items", True)
        for place in range(max(len(read), len(written))):
            to = read[place] if place < len(read) else rest_read
            of = written[place] if place < len(written) else rest_written
            yield from self.faults(to, of, f"{path}[{place}]", depth)
        most = writer.get("maxItems")
        if most is None or most > max(len(read), len(written)):
            yield from self.faults(rest_read, rest_written, f"{path}[]", depth)
        if reader.get("uniqueItems") and not writer.get("uniqueItems"):
            yield SchemaFault(path, "may have an item twice, and must not")


def _place_of(part: Json) -> str:
    """Return what names a part of a schema: its reference, or the object itself."""
    return str(part["$ref"]) if "$ref" in part else f"@{id(part)}"


def _alternatives(schema: Json) -> Sequence[Any]:
    return schema.get("anyOf") or schema.get("oneOf") or ()


def _beside_alternatives(schema: Json) -> dict[str, Any]:
    """Return the rules that hold beside the alternatives; `allOf` is compared apart."""
    used = "anyOf" if schema.get("anyOf") else "oneOf"
    unused = {used, "allOf"} | _WORDS | _WORDS_OF_USE
    return {name: value for name, value in schema.items() if name not in unused}


def _resolved(schema: Any, root: Json) -> Any:
    """Return what a `$ref` leads to, with the words beside it; the schema itself without one."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        found: Any = root
        for step in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            if step:
                found = found.get(step, {}) if isinstance(found, Mapping) else {}
        if not isinstance(found, Mapping):
            return found
        schema = {**found, **{name: schema[name] for name in schema if name != "$ref"}}
    return schema


def _merged(parts: Sequence[Json], writer: Json) -> Json:
    """Return the parts of `allOf` as one schema of an object."""
    whole: dict[str, Any] = {}
    for part in (*parts, {name: writer[name] for name in writer if name != "allOf"}):
        properties = {**whole.get("properties", {}), **part.get("properties", {})}
        required = sorted({*whole.get("required", ()), *part.get("required", ())})
        whole |= dict(part)
        if properties:
            whole |= {"properties": properties, "required": required}
    return whole


def _types(schema: Json) -> set[str]:
    """Return the types that values of a schema may have; a number may be an integer."""
    said = schema.get("type")
    if said is None:
        values = (
            schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else ()
        )
        return {_type_of(value) for value in values} or set(_TYPES)
    return {said} if isinstance(said, str) else set(said)


def _accepted_types(schema: Json) -> set[str]:
    types = _types(schema)
    return types | {"integer"} if "number" in types else types


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _value_faults(reader: Json, writer: Json, path: str) -> Iterator[SchemaFault]:
    accepted, written = _values(reader), _values(writer)
    if accepted is None:
        return
    if written is None:
        shown = ", ".join(map(repr, accepted[:8]))
        yield SchemaFault(path, f"may have any value, and must be one of {shown}")
        return
    for value in written:
        if value not in accepted:
            yield SchemaFault(path, f"may be {value!r}, which is not among the allowed values")


def _values(schema: Json) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _limit_faults(reader: Json, writer: Json, path: str, types: set[str]) -> Iterator[SchemaFault]:
    if _values(writer) is not None:
        return  # its values are compared
    for name in sorted((_LOWER | _UPPER) & reader.keys()):
        if not types & _types_of_limit(name) or _is_within(name, reader[name], writer):
            continue
        own = next((each for each in (name, _other_kind(name)) if each in writer), None)
        has = f"has no {name}" if own is None else f"has {own} {writer[own]}"
        yield SchemaFault(path, f"{has}, and must have {name} {reader[name]}")


def _is_within(name: str, limit: float, writer: Json) -> bool:
    """Return whether all that is written keeps a limit of the reader."""
    if limit == 0 and name in _EMPTY_LIMITS:
        return True
    sign = 1 if name in _LOWER else -1
    own, other = writer.get(name), writer.get(_other_kind(name))
    if own is not None and (own - limit) * sign >= 0:
        return True
    if other is None:
        return False
    is_strict = name.startswith("exclusive")  # the writer may write the other limit itself
    return bool((other - limit) * sign > 0 if is_strict else (other - limit) * sign >= 0)


def _other_kind(name: str) -> str:
    return _KINDS.get(name, "")


_KINDS = {
    "minimum": "exclusiveMinimum",
    "exclusiveMinimum": "minimum",
    "maximum": "exclusiveMaximum",
    "exclusiveMaximum": "maximum",
}
_EMPTY_LIMITS = {"minLength", "minItems", "minProperties"}  # 0 of these limits nothing


def _types_of_limit(name: str) -> set[str]:
    if name.endswith("Length"):
        return {"string"}
    if name.endswith("Items"):
        return {"array"}
    return {"object"} if name.endswith("Properties") else {"integer", "number"}


def _other_faults(reader: Json, writer: Json, path: str) -> Iterator[SchemaFault]:
    """Return the rules of a reader that are not compared here and that the writer does not have."""
    for name in sorted(reader.keys() - _HANDLED - _WORDS - _WORDS_OF_USE):
        if reader[name] != writer.get(name) and not name.startswith("x-"):
            had = f"has {name} {writer[name]!r:.80}" if name in writer else f"has no {name}"
            yield SchemaFault(path, f"{had}, and must have {name} {reader[name]!r:.80}")
