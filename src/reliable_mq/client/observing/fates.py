"""The outcomes of messages as short words, shared by logs, metrics and spans. Pure."""

from collections.abc import Iterator
from typing import Literal

from reliable_mq.client.observing.middleware import Delivery, SendOutcome
from reliable_mq.errors import RemoteError
from reliable_mq.message import ReceivedMessage, SendResult
from reliable_mq.outcomes import Consumed, Outcome, Retry
from reliable_mq.wire.codes import ResponseCode

OutcomeWord = Literal["consumed", "later", "postponed", "dead", "failed", "received"]
"""`later` is a `Retry`, `postponed` one that counts as no attempt, `dead` a `Reject`, `failed` any
other exception, `received` that the messages went to a caller. Dashboards know these words."""
WELL: frozenset[OutcomeWord] = frozenset({"consumed", "postponed", "received"})
"""Outcomes that need no attention."""
FAILED: frozenset[OutcomeWord] = frozenset({"later", "dead", "failed"})
"""Outcomes that OpenTelemetry's conventions call errors."""


def outcome_words(delivery: Delivery) -> Iterator[tuple[ReceivedMessage, OutcomeWord, str]]:
    """Yield each message of an ended delivery, its outcome, and the reason ("" for none)."""
    if delivery.error is not None:
        why = f"{type(delivery.error).__name__}: {delivery.error}"
        for message in delivery.messages:
            yield message, "failed", why
    elif delivery.outcomes is None:
        for message in delivery.messages:
            yield message, "received", ""
    else:
        for message, outcome in zip(delivery.messages, delivery.outcomes, strict=True):
            yield message, *_of_outcome(outcome)


def _of_outcome(outcome: Outcome) -> tuple[OutcomeWord, str]:
    if isinstance(outcome, Consumed):
        return "consumed", ""
    if isinstance(outcome, Retry):
        return ("later" if outcome.counts else "postponed"), outcome.grounds
    return "dead", outcome.reason


def sent_as(result: SendOutcome) -> str:
    """Return "stored", "unanswered" (one-way), or an error's name: a small set of words."""
    if isinstance(result, SendResult):
        return "stored"
    return "unanswered" if result is None else error_name(result)


def error_name(error: BaseException) -> str:
    """Return the name of an error: that of a broker's code, or else of the class."""
    if isinstance(error, RemoteError):
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return type(error).__name__
    return type(error).__name__
