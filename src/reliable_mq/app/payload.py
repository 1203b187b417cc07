"""Bodies to payloads. Receives a body; hands on what the handler's annotation asks for."""

import dataclasses
from collections.abc import Callable
from typing import Any, is_typeddict

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError

from reliable_mq.errors import UsageError

Decoder = Callable[[bytes], Any]


class PayloadInvalid(Exception):
    """A body that is not what the handler asks for; trying again cannot help."""


def decoder_of(wanted: Any, handler: str) -> Decoder:
    """Return what makes a payload of type `wanted` from a body.

    pydantic models and dataclasses are validated by pydantic, `str` is UTF-8 text, `bytes` is the
    body itself; everything else, and no annotation, is JSON.

    Raises:
        UsageError: when nothing can make that type from a body.
    """
    if wanted is bytes:
        return bytes
    if wanted is str:
        return _text
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return _checked(wanted.model_validate_json)
    if dataclasses.is_dataclass(wanted) or is_typeddict(wanted):
        return _checked(TypeAdapter(wanted).validate_json)
    try:
        return _checked(msgspec.json.Decoder(wanted).decode)
    except TypeError as error:
        raise UsageError(f"handler {handler}: no payload can be a {wanted!r}: {error}") from error


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise PayloadInvalid(f"not UTF-8 text: {error}") from error


def _checked(decode: Decoder) -> Decoder:
    def checked(body: bytes) -> Any:
        try:
            return decode(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
            text = f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}"
            raise PayloadInvalid(text) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PayloadInvalid(str(error)) from error

    return checked
