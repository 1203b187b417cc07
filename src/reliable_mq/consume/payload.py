"""Turn bodies into payloads. Receives a body and its content type; returns a payload."""

import dataclasses
from collections.abc import Callable
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

import msgspec
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from reliable_mq.error_texts import masked, shows_rules_only, words_of
from reliable_mq.errors import UsageError, error_text
from reliable_mq.outbox.media_type import MediaType, media_type_of
from reliable_mq.outbox.schema import PayloadInvalid, Schema, schema_of
from reliable_mq.plain_text import a_kind

Decoder = Callable[[bytes, str], Any]
"""(body, content type or "") -> payload. Raises PayloadInvalid, or SchemaTooNew."""
FromJson = Callable[[bytes], Any]

_UNNAMED = "application/octet-stream"  # bytes without further information from their sender


def decoder_of(wanted: Any, owner: str) -> Decoder:
    """Return the decoder from a body to a payload of type `wanted`.

    pydantic models and dataclasses are validated by pydantic, `str` is text, `bytes` is the body
    itself. Every other type, and no annotation, is JSON. In a union whose members all have a
    schema, the message's schema chooses the member.

    Args:
        wanted: the type.
        owner: who wants it, for the error.

    Raises:
        UsageError: no decoder can make that type from a body.
    """
    if wanted is bytes:
        return _raw
    if wanted is str:
        return _text
    bare = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
    members = get_args(bare) if get_origin(bare) in {Union, UnionType} else ()
    schemas = {found.name: each for each in members if (found := schema_of(each)) is not None}
    from_json = _from_json(wanted, (bare, *members), owner)
    if members and len(schemas) == len(members):
        return _one_of({name: decoder_of(each, owner) for name, each in schemas.items()}, from_json)
    return _json(from_json, schema_of(wanted))


def _from_json(wanted: Any, kinds: tuple[Any, ...], owner: str) -> FromJson:
    """Return what reads JSON as a type; `kinds` are this type and the members of a union."""
    if dataclasses.is_dataclass(wanted) and not isinstance(wanted, type):
        raise UsageError(
            f"{owner}: give the type of payloads, not {a_kind(wanted)}: {wanted!r:.100}"
        )
    # Our bodies use the field names of the class; bodies of other clients may use aliases.
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return _checked(partial(wanted.model_validate_json, by_alias=True, by_name=True))
    if any(map(_is_pydantics, kinds)):
        try:
            reader = _reader_of_base64(wanted)
        except PydanticUserError as error:
            raise _impossible(owner, wanted, error) from error
        return _checked(partial(reader.validate_json, by_alias=True, by_name=True))
    try:
        return _checked(msgspec.json.Decoder(wanted).decode)
    except TypeError as error:
        raise _impossible(owner, wanted, error) from error


def _impossible(owner: str, wanted: Any, error: Exception) -> UsageError:
    said = str(error).partition("\n")[0]  # pydantic explains in further lines
    return UsageError(f"{owner}: no payload can be a {wanted!r:.200}: {said}")


def _reader_of_base64(wanted: Any) -> SchemaValidator:
    """Return pydantic's validator, but with bytes in base64, as msgspec writes dataclasses."""
    schema = _with_base64(TypeAdapter(wanted).core_schema)
    return SchemaValidator(schema, {"val_json_bytes": "base64"})


def _with_base64(schema: Any) -> Any:
    """Return a pydantic-core schema whose dataclasses have bytes in base64, as in msgspec.

    Models and dataclasses of pydantic in it keep their own rule.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(map(_with_base64, schema))
    if not isinstance(schema, dict):
        return schema
    found = {name: _with_base64(part) for name, part in schema.items()}
    if found.get("type") in ("dataclass", "typed-dict"):  # of a field "type", it is a schema
        found["config"] = {"val_json_bytes": "base64", **found.get("config", {})}
    return found


def _is_pydantics(wanted: Any) -> bool:
    is_model = isinstance(wanted, type) and issubclass(wanted, BaseModel)
    return is_model or dataclasses.is_dataclass(wanted) or is_typeddict(wanted)


def _raw(body: bytes, _content_type: str) -> bytes:
    return bytes(body)


def _text(body: bytes, content_type: str) -> str:
    media = _readable(content_type)
    charset = "utf-8" if media is None else media.charset
    try:
        return body.decode(charset)
    except (LookupError, ValueError) as error:
        raise PayloadInvalid(f"not {charset.upper()} text: {error}") from error


def _json(from_json: FromJson, known: Schema | None) -> Decoder:
    def decode(body: bytes, content_type: str) -> Any:
        media = _readable(content_type)
        if media is not None and media.charset.lower() != "utf-8":
            body = _text(body, content_type).encode()
        if known is not None:
            body = known.upgraded(body, known.version_of(media))
        return from_json(body)

    return decode


def _one_of(decoders: dict[str, Decoder], any_of_them: FromJson) -> Decoder:
    without = _json(any_of_them, None)

    def decode(body: bytes, content_type: str) -> Any:
        media = _readable(content_type)
        name = None if media is None else media.parameters.get("schema")
        if name is None:
            return without(body, content_type)
        if name not in decoders:
            raise PayloadInvalid(f"the message has schema {name}, expected {' or '.join(decoders)}")
        return decoders[name](body, content_type)

    return decode


def _readable(content_type: str) -> MediaType | None:
    """Parse a content type; None: there is none.

    Raises:
        PayloadInvalid: no decoder can read such a body.
    """
    if not content_type:
        return None
    try:
        media = media_type_of(content_type)
    except UsageError as error:
        raise PayloadInvalid(str(error)) from error
    if not (media.is_json or media.kind.startswith("text/") or media.kind == _UNNAMED):
        raise PayloadInvalid(
            f"content type {content_type} cannot be decoded; use a handler that takes `bytes`"
        )
    return media


def _checked(decode: FromJson) -> FromJson:
    def checked(body: bytes) -> Any:
        try:
            return decode(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            why = masked(
                first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            )
            if shows_rules_only():
                why = first["type"]
            text = f"{place}: {why}{more}" if place else f"{why}{more}"
            raise PayloadInvalid(text) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PayloadInvalid(words_of(error)) from error
        except Exception as error:  # an error of a validator, or of endlessly nested JSON
            raise PayloadInvalid(error_text(error)) from error

    return checked
