"""The catalogue: all log events by name. The reference is made of it, and tests hold it."""

from types import ModuleType

from reliable_mq.telemetry import application_events, broker_events, client_events
from reliable_mq.telemetry.log_event import LogEvent


def _events_in(module: ModuleType) -> list[LogEvent]:
    return [value for value in vars(module).values() if isinstance(value, LogEvent)]


PARTS: dict[str, list[LogEvent]] = {
    "application": _events_in(application_events),
    "client": _events_in(client_events),
    "broker": _events_in(broker_events),
}
"""The events of each part, in the order of the reference."""
EVENTS: dict[str, LogEvent] = {event.name: event for part in PARTS.values() for event in part}
