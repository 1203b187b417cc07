"""Runs middleware hooks around an application's handlers, inside their transaction.

A delivery of the client is several messages with claims and commits. So hooks about a handler run
here, once for each call of it. They do not see the result of the commit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reliable_mq import trace_context
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, Middleware
from reliable_mq.client.observing.open_telemetry import ContextCarrier, OpenTelemetryMiddleware
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, RAISED, Consumed, Outcome

_OUTSIDE = ("after_start", "before_close", "before_send", "after_send", "after_end")


class OutsideHandlers(Middleware):
    """The hooks of a middleware without those for consuming: the client calls these itself."""

    def __init__(self, middleware: Middleware) -> None:
        for name in _OUTSIDE:
            setattr(self, name, getattr(middleware, name))


def hooks_of_handlers(middleware: Sequence[Middleware], origin: ClientIdentity) -> Hooks:
    """Return the hooks for consuming, to be called around handlers.

    The context of a message is passed on to the messages that its handler sends, even if no span is
    recorded.
    """
    own: list[Middleware] = []
    if not any(isinstance(each, OpenTelemetryMiddleware) for each in middleware):
        is_there = trace_context.otel is not None
        own.append(OpenTelemetryMiddleware() if is_there else ContextCarrier())
    return Hooks([*own, *middleware], origin)


@contextmanager
def observed(hooks: Hooks, group: str, message: ReceivedMessage) -> Iterator[bool]:
    """Call the hooks around a handler; yield whether to call the handler.

    Raises:
        Retry, Reject: a hook wants that instead of the handler.
    """
    delivery = hooks.begin(group, (message,))
    skipped = delivery.outcomes
    try:
        if skipped is not None:
            _raise_unless_consumed(skipped[0])
        yield skipped is None
    except BaseException as error:
        if isinstance(error, RAISED):
            hooks.end(delivery, (error,))
        else:
            hooks.fail(delivery, error)
        raise
    hooks.end(delivery, skipped or (CONSUMED,))


def _raise_unless_consumed(outcome: Outcome) -> None:
    if isinstance(outcome, RAISED):  # without the frames of other messages that got the same
        raise outcome.with_traceback(None)
    if not isinstance(outcome, Consumed):
        raise TypeError(f"a middleware returned {outcome!r:.200}, which is not an outcome")
