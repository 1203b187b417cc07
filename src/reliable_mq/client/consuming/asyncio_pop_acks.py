"""Sends the acknowledgements of a consumer by the message, those of a broker one after the other.

It receives the leases of handled messages. While one acknowledgement is on its way, the next ones
gather, so a busy consumer sends few requests. A message that could not be acknowledged is delivered
again.
"""

import asyncio
import logging
from collections import deque

from reliable_mq.client.consuming.asyncio_handler_pool import RunsFlows
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.pop_leases import acknowledge
from reliable_mq.client.consuming.popped_queue import PopLease
from reliable_mq.errors import BrokerBusy, ReliableMQError, Unavailable
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import facts_of_many

log = logging.getLogger(__name__)

COUNT_MAX = 500
"""Messages that one request acknowledges."""
PAUSE_SECONDS = 0.5
"""Before the next try, after a broker gave no answer, or was too busy."""
PAUSE_SECONDS_MAX = 5.0
"""A busy broker that wants a longer pause is asked again then: leases end meanwhile."""
_CHANGING_SECONDS = 0.02


def pause_after(error: ReliableMQError) -> float:
    """Return the seconds before the next try, after an error that may pass."""
    wanted = error.pause_seconds if isinstance(error, BrokerBusy) else 0.0
    return min(max(PAUSE_SECONDS, wanted), PAUSE_SECONDS_MAX)


class AsyncPopAcks:
    """The acknowledgements of one consumer that are not sent yet.

    Invariant: while leases of a broker wait, a task sends them.

    Args:
        client: runs the flows.
        group: the group's state.
    """

    def __init__(self, client: RunsFlows, group: ConsumerGroup) -> None:
        self._client = client
        self._group = group
        self._waiting: dict[str, deque[PopLease]] = {}  # by broker
        self._senders: dict[str, asyncio.Task[None]] = {}

    def add(self, lease: PopLease) -> None:
        """Acknowledge a message soon."""
        broker_name = lease.handle.broker
        self._waiting.setdefault(broker_name, deque()).append(lease)
        if broker_name not in self._senders:
            sender = asyncio.get_running_loop().create_task(self._send(broker_name))
            self._senders[broker_name] = sender

    async def close(self, patience: float) -> None:
        """Wait up to `patience` seconds until all is sent. What is left is delivered again."""
        senders = list(self._senders.values())
        if senders:
            await asyncio.wait(senders, timeout=patience)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        for left in self._waiting.values():
            self._give_up(list(left), "the consumer was closed")
        self._waiting.clear()

    async def _send(self, broker_name: str) -> None:
        waiting = self._waiting[broker_name]
        try:
            while waiting:
                count = min(len(waiting), COUNT_MAX)
                taken = [waiting.popleft() for _ in range(count)]
                ready = [lease for lease in taken if not lease.is_changing]
                waiting.extend(lease for lease in taken if lease.is_changing)
                if ready:
                    await self._send_some(broker_name, ready)
                else:
                    await asyncio.sleep(_CHANGING_SECONDS)
        finally:
            del self._senders[broker_name]

    async def _send_some(self, broker_name: str, leases: list[PopLease]) -> None:
        try:
            await self._client.run(acknowledge(self._group, broker_name, leases))
        except (Unavailable, BrokerBusy) as error:
            now = self._client.lease_clock()
            ended = [lease for lease in leases if lease.expires <= now]
            self._waiting[broker_name].extend(lease for lease in leases if lease.expires > now)
            self._give_up(ended, error)
            if isinstance(error, Unavailable):
                self._group.routes.mark_stale(leases[0].topic)
            await asyncio.sleep(pause_after(error))
        except asyncio.CancelledError:
            self._waiting[broker_name].extend(leases)
            raise
        except ReliableMQError as error:
            self._give_up(leases, error)

    def _give_up(self, leases: list[PopLease], error: object) -> None:
        if leases:
            client_events.ACKNOWLEDGEMENT_LOST.log(
                log,
                group=self._group.name,
                messages=len(leases),
                **facts_of_many([lease.message for lease in leases]),
                error=error,
            )
