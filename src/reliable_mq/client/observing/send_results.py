"""Converts results of a client's verbs into one result per message. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from reliable_mq.client.observing.middleware import SendOutcome
from reliable_mq.message import SendResult


def of_one(result: SendResult) -> Sequence[SendOutcome]:
    """Return the result of `send`."""
    return (result,)


def of_many(results: Sequence[SendOutcome]) -> Sequence[SendOutcome]:
    """Return the results of `send_many`."""
    return results


def of_nothing(_: int) -> Sequence[SendOutcome]:
    """Return the results of `send_oneway`: none, as there is no answer."""
    return (None,)


def of_batch(result: SendResult) -> Sequence[SendOutcome]:
    """Return the results of `send_batch`, whose single result has all ids."""
    ids = result.message_id.split(",")
    places = result.offset_message_id.split(",")
    return [
        msgspec.structs.replace(
            result,
            message_id=message_id,
            offset_message_id=place,
            queue_offset=result.queue_offset + at,
        )
        for at, (message_id, place) in enumerate(zip(ids, places, strict=True))
    ]


def of_future(done: Any) -> SendOutcome:
    """Return the outcome of an asyncio or thread future."""
    try:
        result: SendResult = done.result()
    except BaseException as error:  # noqa: BLE001 - it is the outcome
        return error
    return result
