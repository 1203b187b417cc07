"""Payloads to bytes. Receives what an application sends; hands on a body and its content type."""

import dataclasses
from typing import Any

import msgspec
from pydantic import BaseModel

from reliable_mq.errors import MessageRefused
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"

_encode_json = msgspec.json.Encoder().encode


def encode_payload(payload: Any) -> tuple[bytes, str]:
    """Return body and content type of a pydantic model, dataclass, msgspec Struct, dict, list,
    str or bytes.

    Raises:
        MessageRefused: when the payload cannot be written as JSON, is empty or is over 4 MiB.
    """
    body, content_type = _encode(payload)
    if not body:
        raise MessageRefused("the payload is empty; RocketMQ carries no message without a body")
    if len(body) > MESSAGE_BODY_SIZE_MAX:
        raise MessageRefused(
            f"the payload is {len(body)} bytes, more than {MESSAGE_BODY_SIZE_MAX}; "
            "store it elsewhere and send where it is"
        )
    return body, content_type


def _encode(payload: Any) -> tuple[bytes, str]:
    if isinstance(payload, bytes):
        return payload, BYTES
    if isinstance(payload, str):
        return payload.encode(), TEXT
    try:
        if isinstance(payload, BaseModel):
            return payload.model_dump_json().encode(), JSON
        if isinstance(payload, dict | list | msgspec.Struct) or dataclasses.is_dataclass(payload):
            return _encode_json(payload), JSON
    except (TypeError, ValueError) as error:
        raise MessageRefused(
            f"a {type(payload).__name__} cannot be written as JSON: {error}"
        ) from error
    raise MessageRefused(
        f"a payload is a pydantic model, dataclass, dict, list, str or bytes, "
        f"not a {type(payload).__name__}"
    )
