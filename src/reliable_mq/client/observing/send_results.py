"""What the verbs of a client return, as one result for each message. Pure."""

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
    """Return the result of `send_oneway`: nobody knows."""
    return (None,)


def of_batch(result: SendResult) -> Sequence[SendOutcome]:
    """Return the results of `send_batch`, whose one result names all ids."""
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
    """Return what a future of asyncio's or of a thread's has come to."""
    try:
        result: SendResult = done.result()
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        return error
    return result
