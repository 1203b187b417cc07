"""Logs one line per message, with its facts as fields (`extra`) for structured logs."""

import logging
from typing import Any

from reliable_mq.client.observing.fates import WELL, outcome_words
from reliable_mq.client.observing.middleware import (
    Delivery,
    Ending,
    Middleware,
    Sending,
    SendOutcome,
)
from reliable_mq.errors import error_text
from reliable_mq.message import Message, ReceivedMessage, SendResult
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of


class LoggingMiddleware(Middleware):
    """Logs sent messages, the ends of handlers, and the ends of half messages.

    A success is logged at the middleware's level, a failure as a warning. The fields of a line
    are `event` ("sent", "consumed", "received", "half_ended"), `topic`, `message_id`, `seconds`
    and, if they are known, `producer_group`, `consumer_group`, `tag`, `keys`, `ordering_key`,
    `broker`, `queue_id`, `queue_offset`, `attempt`, `outcome`, `error`. Bodies are never logged.

    Args:
        logger: the logger or its name.
        level: level of successes, by default `logging.INFO`.
    """

    def __init__(
        self, logger: logging.Logger | str = "reliable_mq.messages", level: int = logging.INFO
    ) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level

    def after_send(self, sending: Sending) -> None:
        """Log each message, with its place or its error."""
        for message, result in zip(sending.messages, sending.results, strict=True):
            failed = isinstance(result, BaseException)
            level = logging.WARNING if failed else self._level
            if not self._logger.isEnabledFor(level):
                continue
            fields: dict[str, Any] = {
                "producer_group": sending.group,
                "seconds": sending.seconds,
                **_of_message(message),
                **_of_result(result),
            }
            client_events.SENT.log(
                self._logger,
                level=level,
                result="not sent" if failed else "sent",
                detail=f": {fields['error']}" if failed else "",
                **fields,
            )

    def after_consume(self, delivery: Delivery) -> None:
        """Log each message, with the handler's outcome."""
        for message, word, why in outcome_words(delivery):
            level = self._level if word in WELL else logging.WARNING
            if not self._logger.isEnabledFor(level):
                continue
            fields = {
                "consumer_group": delivery.group,
                "seconds": delivery.seconds,
                "outcome": word,
                "broker": message.queue.broker_name,
                "queue_id": message.queue.queue_id,
                "queue_offset": message.queue_offset,
                "attempt": message.reconsume_times + 1,
                **_of_message(message),
                **({"error": why} if why else {}),
            }
            event = client_events.RECEIVED if delivery.verb == "receive" else client_events.CONSUMED
            event.log(self._logger, level=level, detail=f": {why}" if why else "", **fields)

    def after_end(self, ending: Ending) -> None:
        """Log the end of a half message."""
        level = self._level if ending.error is None else logging.WARNING
        half = ending.half
        fields: dict[str, Any] = {
            "producer_group": half.group,
            "topic": half.queue.topic,
            "message_id": half.message_id,
            "outcome": ending.decision.value,
            **({} if ending.error is None else {"error": error_text(ending.error)}),
        }
        detail = "" if ending.error is None else f" failed: {error_text(ending.error)}"
        client_events.HALF_ENDED.log(self._logger, level=level, detail=detail, **fields)


def _of_message(message: Message | ReceivedMessage) -> dict[str, Any]:
    fields: dict[str, Any] = facts_of(message)
    if message.tag:
        fields["tag"] = message.tag
    if message.keys:
        fields["keys"] = list(message.keys)
    if message.ordering_key:
        fields["ordering_key"] = message.ordering_key
    return fields


def _of_result(result: SendOutcome) -> dict[str, Any]:
    if isinstance(result, SendResult):
        return {
            "outcome": result.status.name,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
        }
    if result is None:
        return {"outcome": "unanswered"}
    return {"outcome": "failed", "error": error_text(result)}
