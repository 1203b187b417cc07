"""Logs one line per message, with its facts as fields (`extra`) for structured logs."""

import logging

from reliable_mq.client.observing.fates import WELL, outcome_words
from reliable_mq.client.observing.middleware import (
    Delivery,
    Ending,
    Middleware,
    Sending,
    SendOutcome,
)
from reliable_mq.message import Message, ReceivedMessage, SendResult


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
            fields = {
                "event": "sent",
                "producer_group": sending.group,
                "seconds": sending.seconds,
                **_of_message(message),
                **_of_result(result),
            }
            text = "not sent: %s to topic %s: %s" if failed else "sent: %s to topic %s%s"
            more = repr(result) if failed else ""
            self._logger.log(level, text, message.message_id, message.topic, more, extra=fields)

    def after_consume(self, delivery: Delivery) -> None:
        """Log each message, with the handler's outcome."""
        for message, word, why in outcome_words(delivery):
            level = self._level if word in WELL else logging.WARNING
            if not self._logger.isEnabledFor(level):
                continue
            fields = {
                "event": "received" if delivery.verb == "receive" else "consumed",
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
            self._logger.log(
                level,
                "%s: %s of topic %s by group %s%s",
                *(word, message.message_id, message.topic, delivery.group),
                f": {why}" if why else "",
                extra=fields,
            )

    def after_end(self, ending: Ending) -> None:
        """Log the end of a half message."""
        level = self._level if ending.error is None else logging.WARNING
        half = ending.half
        fields = {
            "event": "half_ended",
            "producer_group": half.group,
            "topic": half.queue.topic,
            "message_id": half.message_id,
            "outcome": ending.decision.value,
            **({} if ending.error is None else {"error": repr(ending.error)}),
        }
        text = "%s of half message %s of topic %s%s"
        more = "" if ending.error is None else f" failed: {ending.error!r}"
        self._logger.log(
            level,
            text,
            *(ending.decision.value, half.message_id, half.queue.topic, more),
            extra=fields,
        )


def _of_message(message: Message | ReceivedMessage) -> dict[str, object]:
    fields: dict[str, object] = {"topic": message.topic, "message_id": message.message_id}
    if message.tag:
        fields["tag"] = message.tag
    if message.keys:
        fields["keys"] = list(message.keys)
    if message.ordering_key:
        fields["ordering_key"] = message.ordering_key
    return fields


def _of_result(result: SendOutcome) -> dict[str, object]:
    if isinstance(result, SendResult):
        return {
            "outcome": result.status.name,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
        }
    if result is None:
        return {"outcome": "unanswered"}
    return {"outcome": "failed", "error": repr(result)}
