"""Middleware around an application's handlers, where these run: inside their transaction.

The client's own deliveries are several messages with their claims and commits, so what looks at a
handler is called here, once for each call of it. What becomes of the commit is not seen.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reliable_mq import trace_context
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, Middleware
from reliable_mq.client.observing.open_telemetry import ContextCarrier, OpenTelemetryMiddleware
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, RAISED, Consumed, Outcome
from reliable_mq.trace_context import extracted

_OUTSIDE = ("after_start", "before_close", "before_send", "after_send", "after_end")


class OutsideHandlers(Middleware):
    """A middleware's hooks but those of consuming: what the client calls by itself."""

    def __init__(self, middleware: Middleware) -> None:
        for name in _OUTSIDE:
            setattr(self, name, getattr(middleware, name))


def hooks_of_handlers(middleware: Sequence[Middleware], origin: ClientIdentity) -> Hooks:
    """Return what calls the hooks of consuming around handlers.

    The context of a message goes on with what its handler sends, whether anybody asked for spans or
    not.
    """
    own: list[Middleware] = []
    if not any(isinstance(each, OpenTelemetryMiddleware) for each in middleware):
        is_there = trace_context.otel is not None
        own.append(OpenTelemetryMiddleware() if is_there else ContextCarrier())
    return Hooks([*own, *middleware], origin)


@contextmanager
def observed(hooks: Hooks, group: str, message: ReceivedMessage) -> Iterator[bool]:
    """Call the hooks around a handler; give whether it is to be called.

    Raises:
        Retry, Reject: when a hook wants that instead of the handler.
    """
    first, *others = hooks.middleware
    if not others and isinstance(first, OpenTelemetryMiddleware) and not first.records:
        # Nobody looks: the usual case, and the cheaper way.
        token = trace_context.contexts.attach(extracted(message.properties, message.topic))
        try:
            yield True
        finally:
            trace_context.contexts.detach(token)
        return
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
        raise TypeError(f"a middleware wants {outcome!r:.200}, which is no outcome")
