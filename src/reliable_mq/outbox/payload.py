"""Turn payloads into bytes. Receives an application's payload; returns a body and content type."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass

from reliable_mq.error_texts import words_of
from reliable_mq.errors import MessageRefused, UsageError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.not_payloads import instead
from reliable_mq.outbox.media_type import media_type_of
from reliable_mq.outbox.not_a_number import not_a_number_in
from reliable_mq.outbox.schema import schema_of
from reliable_mq.plain_text import a_kind

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"

_KEY_OF_NUMBER = re.compile(rb'"-?[0-9][^"]*":')
_DEPTH_MAX = 20
_encode_json = msgspec.json.Encoder().encode


def encode_payload(payload: Any, content_type: str = "") -> tuple[bytes, str]:
    """Return body and content type of a pydantic model, dataclass, msgspec Struct, dict, list,
    str or bytes.

    Args:
        payload: the payload to send.
        content_type: the media type of bytes or a str, if it says more than the Python type.

    Raises:
        MessageRefused: the payload cannot be written as JSON or UTF-8, is empty or over 4 MiB. A
            float that is no number, or infinite, cannot be written: it would become null. Two keys
            of a dict with one text, such as 1 and "1", cannot either: a reader keeps one of them.
        UsageError: the content type is malformed, or given for a payload that is JSON.
    """
    body, natural = _encode(payload)
    if natural not in (BYTES, TEXT) and _KEY_OF_NUMBER.search(body):
        _refuse_twins(payload, body)
    if content_type:
        natural = _chosen(content_type, payload)
    if b"null" in body and (number := not_a_number_in(payload)):
        raise MessageRefused(
            f"{a_kind(payload)} cannot be written as JSON: {number}, which JSON has not; "
            "send None, or a text"
        )
    if not body:
        raise MessageRefused("the payload is empty; RocketMQ carries no message without a body")
    if len(body) > MESSAGE_BODY_SIZE_MAX:
        raise MessageRefused(
            f"the payload is {len(body)} bytes, more than {MESSAGE_BODY_SIZE_MAX}; "
            "store it elsewhere and send a link to it"
        )
    return body, natural


def _refuse_twins(payload: Any, body: bytes) -> None:
    """Refuse an object of JSON that has a key twice.

    Keys of a dict are unique, but keys that are no texts may become the text of another one.
    """

    def check(pairs: list[tuple[str, object]]) -> None:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twin = next(key for key in keys if keys.count(key) > 1)
            raise MessageRefused(
                f"{a_kind(payload)} cannot be written as JSON: two keys of a dict become {twin!r}, "
                "and a reader would keep one of them; let the keys have one type"
            )

    try:
        json.loads(body, object_pairs_hook=check, parse_int=str, parse_float=str)
    except RecursionError:  # so deep, it is read by nobody
        return


def _chosen(content_type: str, payload: Any) -> str:
    if not isinstance(payload, bytes | str):
        raise UsageError(
            f"content_type={content_type!r}: only bytes and str need one, "
            f"a {type(payload).__name__} is written as {JSON}"
        )
    media = media_type_of(content_type)
    if isinstance(payload, str) and media.charset.lower() not in {"utf-8", "utf8"}:
        raise UsageError(
            f"content_type={content_type!r}: a str is sent as UTF-8; for another charset encode "
            "it, and send bytes"
        )
    return content_type


def _encode(payload: Any) -> tuple[bytes, str]:
    if isinstance(payload, bytes):
        return payload, BYTES
    try:
        if isinstance(payload, str):
            return payload.encode(), TEXT
        if isinstance(payload, BaseModel):
            return payload.model_dump_json().encode(), _json_of(payload)
        if isinstance(payload, dict | list | msgspec.Struct):
            return _encode_json(payload), _json_of(payload)
        kind: Any = type(payload)
        is_data = dataclasses.is_dataclass(kind)  # ask the type: the payload may not be a class
        if is_data:
            return _writer_of(kind)(payload), _json_of(payload)
    except (TypeError, ValueError, RecursionError) as error:
        write = _encode_json if isinstance(payload, dict | list) else _write_with_pydantics
        place, fault = ("", str) if isinstance(payload, str) else _place_of_fault(payload, write)
        why = f"{words_of(error)}{instead(fault)}"
        raise MessageRefused(
            f"{a_kind(payload)} cannot be written as "
            f"{'UTF-8' if isinstance(payload, str) else 'JSON'}: {place and f'{place}: '}{why}"
        ) from error
    if isinstance(payload, type):
        given = f"the class {payload.__name__}: send an object of it"
    else:
        given = f"{a_kind(payload)}{instead(type(payload))}"
    raise MessageRefused(
        f"a payload is a pydantic model, dataclass, msgspec Struct, dict, list, str or bytes, "
        f"not {given}"
    )


def _place_of_fault(
    value: Any, write: Callable[[Any], bytes], place: str = "", depth: int = 0
) -> tuple[str, type]:
    """Return the place of the first part of a value that JSON has not, "items[2].price", its type.

    Empty: it is the value itself, or a part that lies too deep.
    """
    kind = type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        parts = ((f"{place}.{key}".lstrip("."), each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"{place}[{number}]", each) for number, each in enumerate(value))
    if depth < _DEPTH_MAX:
        for name, each in parts:
            try:
                write(each)
            except (TypeError, ValueError, RecursionError):
                return _place_of_fault(each, write, name, depth + 1)
    return place, kind


def _json_of(payload: Any) -> str:
    found = schema_of(type(payload))
    return JSON if found is None else found.content_type


@cache
def _writer_of(kind: type) -> Callable[[Any], bytes]:
    """Return the writer of a dataclass. Pydantic parts are written as pydantic reads them.

    Annotations only say whether there may be pydantic parts. Each value is written by its own type:
    an object of a subclass has fields that no annotation knows.
    """
    if is_pydantic_dataclass(kind):
        return TypeAdapter(kind).dump_json
    try:
        schema = TypeAdapter(kind).core_schema
    except Exception:  # noqa: BLE001 - it has types that only msgspec knows, or an unknown name
        return _write_with_pydantics
    return _write_with_pydantics if _holds_pydantics(schema) else _encode_json


def _write_with_pydantics(payload: Any) -> bytes:
    return _encode_json(_with_pydantics_written(payload))


def _with_pydantics_written(value: Any) -> Any:
    """Return a value for msgspec; its pydantic parts are already written as JSON."""
    if isinstance(value, BaseModel):
        return msgspec.Raw(value.model_dump_json())
    kind: Any = type(value)
    if is_pydantic_dataclass(kind):
        return msgspec.Raw(_writer_of(kind)(value))
    if dataclasses.is_dataclass(kind):
        names = (field.name for field in dataclasses.fields(value))
        value = {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, dict):
        return {key: _with_pydantics_written(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(_with_pydantics_written, value))
    return value


def _holds_pydantics(schema: Any) -> bool:
    if isinstance(schema, list | tuple):
        return any(map(_holds_pydantics, schema))
    if not isinstance(schema, dict):
        return False
    kind: Any = schema.get("cls")
    is_theirs = schema.get("type") in {"model", "dataclass"} and (
        issubclass(kind, BaseModel) or is_pydantic_dataclass(kind)
    )
    return is_theirs or any(map(_holds_pydantics, schema.values()))
