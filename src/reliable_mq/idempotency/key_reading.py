"""Reads a message's business key. Receives the value of `idempotent_by=`; returns a function.

idempotent_by="order_id"                  a field of the payload, or "order.id" for a nested one
idempotent_by=lambda order: order.id      a function of the payload
def by_key(message: ReceivedMessage)      a function of the message, if it is annotated so
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints

from reliable_mq.errors import KeyInvalid, UsageError, error_text
from reliable_mq.idempotency.business_key import BusinessKey, business_key
from reliable_mq.message import ReceivedMessage
from reliable_mq.misspelt import meant


class KeyReader(NamedTuple):
    """Reads the key of each message of a consumer.

    `read`: (payload, message) -> its key; raises KeyInvalid. `needs_payload`: the key needs the
    payload, even if the handler does not ask for it.
    """

    read: Callable[[Any, ReceivedMessage], BusinessKey]
    needs_payload: bool = True


KeySource = str | Callable[[Any], object]


def key_reader_of(source: KeySource, consumer: str) -> KeyReader:
    """Return the reader of the business key of each message of a consumer.

    Raises:
        UsageError: `source` is not a field's name, or not a function of one argument.
    """
    if isinstance(source, str):
        return _field(source, consumer)
    if not callable(source):
        raise UsageError(f"{consumer}: idempotent_by={source!r} is not a field's name or function")
    if inspect.iscoroutinefunction(source):
        raise UsageError(f"{consumer}: idempotent_by is an async def; it must be a plain def")
    takes_message = _takes_message(source, consumer)

    def read(payload: Any, message: ReceivedMessage) -> BusinessKey:
        try:
            value = source(message if takes_message else payload)
        except KeyInvalid:
            raise
        except Exception as error:  # the payload causes it: the next attempt would fail as well
            raise KeyInvalid(f"idempotent_by: {error_text(error)}") from error
        return business_key(value)

    return KeyReader(read, not takes_message)


def _field(path: str, consumer: str) -> KeyReader:
    names = path.split(".")
    if not all(name.strip() for name in names):
        raise UsageError(f"{consumer}: idempotent_by={path!r} is not a field's name")

    def read(payload: Any, _message: ReceivedMessage) -> BusinessKey:
        value = payload
        for name in names:
            value = field_of(value, name)
        return business_key(value)

    return KeyReader(read)


def check_field(source: KeySource, payload_type: Any, consumer: str) -> None:
    """Check that a pydantic model has the field from which keys are read.

    Raises:
        UsageError: it has not: each message would become a dead letter.
    """
    kind = payload_type
    for name in source.split(".") if isinstance(source, str) else ():
        fields = getattr(kind, "model_fields", None) if isinstance(kind, type) else None
        if not isinstance(fields, Mapping) or kind.model_config.get("extra") == "allow":
            return
        if name not in fields and not hasattr(kind, name):
            raise UsageError(
                f"{consumer}: idempotent_by={source!r}: {kind.__name__} has no field {name!r}"
                f"{meant(name, list(fields))}"
            )
        kind = fields[name].annotation if name in fields else None


def field_of(value: Any, name: str) -> Any:
    """Return the item or attribute `name` of a value.

    Raises:
        KeyInvalid: the value has no such item or attribute.
    """
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
    elif not name.startswith("_") and hasattr(value, name):
        return getattr(value, name)
    raise KeyInvalid(f"there is no {name!r} to read the key from")


def _takes_message(source: Callable[[Any], object], consumer: str) -> bool:
    try:
        parameters = list(inspect.signature(source).parameters.values())
    except (TypeError, ValueError):  # a builtin; it gets the payload
        return False
    needed = [each for each in parameters if each.default is each.empty]
    if not parameters or len(needed) > 1:
        raise UsageError(f"{consumer}: idempotent_by must be a function of one argument")
    try:
        hints = get_type_hints(source)
    except (NameError, TypeError):
        return False
    return hints.get(parameters[0].name) is ReceivedMessage
