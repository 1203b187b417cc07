"""`Life`: the parts of an application that connect, from their start to their end.

Receives the application's connections, databases and declarations. Makes what sends, receives and
repeats over them; starts it, and closes it. Refuses to know how anything was declared.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reliable_mq.app.declarations import Declarations
from reliable_mq.app.thread_connections import Connections
from reliable_mq.app.thread_upkeep import Upkeep, check_upkeep
from reliable_mq.consume.asyncio_worker import Worker
from reliable_mq.database.sql_databases import Databases
from reliable_mq.errors import UsageError
from reliable_mq.escalate.alerts import Notifier
from reliable_mq.outbox.asyncio_producer import Producer
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.thread_half_messages import HalfMessages
from reliable_mq.outbox.thread_outboxes import Outboxes
from reliable_mq.periodic.declaration import PeriodicState
from reliable_mq.periodic.sql_ticks import SqlTicks
from reliable_mq.periodic.thread_periodic import PeriodicSender
from reliable_mq.runtime.stopped import StopSignal
from reliable_mq.settings import Settings
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)


class Life:
    """What an application runs over its connections. Its methods are described at `ReliableMQ`.

    Invariant: nothing connects before `start`, `resend_forever`, or a first use.

    Args:
        name: the application's name.
        connections: the connections of this process.
        databases: the databases by name.
        settings: the application's settings.
        policy: when the next send of a stub is due.
        declared: what the application has declared so far; more may be declared later.
        notifiers: the notifiers beside those of the settings.
        found_by: returns the options with which commands find the application.
    """

    def __init__(
        self,
        name: str,
        connections: Connections,
        databases: Databases,
        settings: Settings,
        policy: ResendPolicy,
        declared: Declarations,
        notifiers: Sequence[Notifier],
        found_by: Callable[[], str],
    ) -> None:
        self._name = name
        self._connections = connections
        self._databases = databases
        self._settings = settings
        self._policy = policy
        self._declared = declared
        self.half_messages = HalfMessages(
            name, connections, databases, policy.next_time, settings.resend_lease_seconds
        )
        self.outboxes = Outboxes(
            connections,
            databases,
            self.half_messages,
            relay_lease=settings.relay_lease_seconds,
            timer_range=settings.timer_range_seconds,
            is_shared=settings.relay == "shared" and connections.shares_relays,
            groups_of_topic=declared.required_groups,
            known_groups=declared.known_groups,
            envelopes=declared.envelopes,
            on_first_send=self._warn_without_consumers,
        )
        self.upkeep = Upkeep(
            *(name, connections, databases, settings, policy, notifiers, found_by),
            self.periodic_senders,
        )
        self._producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        """See `ReliableMQ.producer`."""
        if self._producer is None:
            self._producer = Producer(
                self._connections,
                self._declared.is_managed,
                self._settings.send_outside_transaction,
                self.half_messages.listeners,
                self._declared.envelopes,
            )
        return self._producer

    def periodic_senders(self) -> dict[str, PeriodicSender]:
        """Return what fires the ticks, by the names of databases that have periodic messages."""
        return {
            name: PeriodicSender(
                messages,
                SqlTicks(each.engine, each.periodic, each.periodic_ticks, self._name),
                each.handler_session,
                partial(self.outboxes.of, name, False),
            )
            for name, each in self._databases.items()
            if (messages := [p for p in self._declared.periodic if p.database == name])
        }

    def periodic_states(self) -> list[PeriodicState]:
        """Return the periodic messages, with their next and last ticks."""
        return [
            state
            for name, sender in self.periodic_senders().items()
            for state in sender.states(self._databases[name].clock.measured_now())
        ]

    def start(self) -> None:
        """See `ReliableMQ.start`."""
        if not self._declared.consumers:
            raise UsageError(
                f"application {self._name} has no consumers: decorate a handler, or name the module"
                " that imports them"
            )
        check_upkeep(self._settings, self._policy, self._declared.consumers)
        self._databases.check_tables()
        self.half_messages.join()
        self._share_relays()
        connections, consumers = self._connections, self._declared.consumers
        self._say_when_ready(connections.start_worker("consumers", consumers, self._databases))
        if connections.is_embedded:
            connections.start_scheduler(self.resend_forever)

    def resend_forever(self, stopped: StopSignal) -> None:
        """See `ReliableMQ.resend_forever`."""
        check_upkeep(self._settings, self._policy, self._declared.consumers)
        if not self._databases.wait_until_reached(stopped):
            return
        self._databases.check_tables()
        interval = self._settings.resend_interval_seconds
        application_events.RESEND_STARTED.log(log, application=self._name, interval=interval)
        self.half_messages.join()
        self._share_relays()
        self.upkeep.run(stopped)
        application_events.APPLICATION_STOPPED.log(
            log, application=self._name, part="resend scheduler"
        )

    def close(self) -> None:
        """See `ReliableMQ.close`."""
        self._connections.close()
        self.half_messages.close()
        self.outboxes.forget()
        self._databases.close()

    def _say_when_ready(self, worker: Worker) -> None:
        consumed = (f"{each.topic} as {each.group}" for each in self._declared.consumers)
        facts: dict[str, Any] = {"application": self._name, "consumes": ", ".join(consumed)}
        if not self._connections.client._engine.name_servers.has_answered:
            application_events.APPLICATION_WAITS.log(log, **facts)
        worker.when_accepted(lambda: application_events.APPLICATION_READY.log(log, **facts))

    def _share_relays(self) -> None:
        if self._settings.relay == "shared" and self._connections.shares_relays:
            self._connections.shared_relays.start(self._databases)

    def _warn_without_consumers(self) -> None:
        """Warn when an application sends to its embedded broker without started consumers."""
        connections = self._connections
        if connections.is_embedded and self._declared.consumers and not connections.is_consuming:
            application_events.APPLICATION_NOT_STARTED.log(log, application=self._name)
