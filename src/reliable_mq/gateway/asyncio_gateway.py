"""The endpoint: its calls by name, and what it does between them.

It is one implementation for a process before a cluster and for a broker with an endpoint of its
own. It receives calls whose bytes are decoded, and gives answers; it knows nothing of HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from reliable_mq.gateway import renewals
from reliable_mq.gateway.asyncio_beats import Beats
from reliable_mq.gateway.asyncio_clients import Clients
from reliable_mq.gateway.asyncio_consuming import Consuming, Write
from reliable_mq.gateway.asyncio_producing import Producing
from reliable_mq.gateway.asyncio_pulling import Pulling
from reliable_mq.gateway.asyncio_questions import Answer, Questions, Roster
from reliable_mq.gateway.asyncio_receipts import Receipts
from reliable_mq.gateway.asyncio_rights import Rights
from reliable_mq.gateway.asyncio_soon import Soon
from reliable_mq.gateway.asyncio_upstream import Ask, Begun, Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sessions import Sessions, TelemetryStream
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

Handle = Callable[[Caller, Any], Awaitable[Any]]
Begin = Callable[[Caller, Any], Begun | None]
BeginBytes = Callable[[Caller, bytes], Begun | None]
Stream = Callable[[Caller, Any, Write], Awaitable[None]]


class Gateway:
    """The endpoint.

    Args:
        ask: asks a server.
        name_servers: the addresses of the name servers, "host:port".
        client_id: names this process to brokers.
        roster: is told which consumers there are; None: no broker in this process.
    """

    def __init__(
        self,
        ask: Ask,
        name_servers: Sequence[str],
        client_id: str,
        roster: Roster | None = None,
    ) -> None:
        self.upstream = Upstream(ask, name_servers)
        self.sessions = Sessions()
        rights = Rights(self.upstream)
        self._producing = Producing(self.upstream, self.sessions, rights)
        self._receipts = receipts = Receipts(self.upstream, self.sessions)
        self._consuming = Consuming(self.upstream, self.sessions, receipts, rights)
        self._pulling = Pulling(self.upstream)
        self._questions = Questions(self.sessions)
        self._soon = Soon()
        self._beats = Beats(client_id, self.upstream, self.sessions, self._producing, self._soon)
        self._clients = Clients(
            *(self.upstream, self.sessions, rights, receipts.release, self._beats.came),
            *(self._questions, roster),
        )
        self._works: list[asyncio.Task[None]] = []
        clients, producing, consuming = self._clients, self._producing, self._consuming
        self.unary: dict[str, Handle] = {
            "QueryRoute": clients.query_route,
            "Heartbeat": clients.heartbeat,
            "NotifyClientTermination": clients.terminate,
            "SendMessage": producing.send,
            "EndTransaction": producing.end_transaction,
            "RecallMessage": producing.recall,
            "QueryAssignment": consuming.query_assignment,
            "AckMessage": receipts.acknowledge,
            "ChangeInvisibleDuration": receipts.change,
            "ForwardMessageToDeadLetterQueue": receipts.forward,
            "UpdateOffset": self._pulling.update_offset,
            "GetOffset": self._pulling.get_offset,
            "QueryOffset": self._pulling.query_offset,
        }
        """The calls with one answer, by name."""
        self.quick: dict[str, Begin] = {"SendMessage": producing.begin_send}
        """Those of them that one request to the broker of this process may answer."""
        self.usual: dict[str, BeginBytes] = {
            "AckMessage": receipts.begin_ack,
            "SendMessage": producing.begin_usual,
        }
        """The same, of calls whose bytes have the form that clients write."""
        self.streamed: dict[str, Stream] = {
            "ReceiveMessage": consuming.receive,
            "PullMessage": self._pulling.pull,
        }
        """The calls with many answers, by name."""

    @property
    def waiting(self) -> int:
        """How many receives and pulls wait for a message."""
        return self._consuming.places.taken + self._pulling.places.taken

    @property
    def renewals(self) -> Mapping[str, int]:
        """How many renewals there were, by their outcome; see `Receipts.renewals`."""
        return self._receipts.renewals

    async def told(self, caller: Caller, command: Any, stream: TelemetryStream) -> None:
        """Take a command of a client; see `Clients.told`."""
        await self._clients.told(caller, command, stream)

    def lost(self, stream: TelemetryStream) -> None:
        """Note that a Telemetry stream has ended."""
        self._clients.lost(stream)

    def start(self) -> None:
        """Do what is done between calls, from now on."""
        loop = asyncio.get_running_loop()
        self._works = [
            loop.create_task(self._renew_forever()),
            loop.create_task(self._beats.beat_forever()),
        ]

    async def close(self) -> None:
        """Tell clients to connect again, give back what push consumers hold, and stop."""
        self._questions.reconnect()
        for task in self._works:
            task.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        for session in self.sessions:
            self._receipts.release(session)
        await self._receipts.close()

    async def _renew_forever(self) -> None:
        while True:
            for _ in range(int(renewals.SCAN_SECONDS / renewals.RENEW_SECONDS)):
                await asyncio.sleep(renewals.RENEW_SECONDS)
                self._receipts.renew_once()
            self._clients.forget_silent()

    # Requests of brokers.

    def asked(self, address: str, command: Command, answer: Answer | None = None) -> Command | None:
        """Take a request of a broker: how has a transaction ended, or a question of a tool.

        Args:
            address: of the broker.
            command: the request.
            answer: takes an answer that comes later; None: this broker knows no client.

        Returns:
            The answer if there is one already.
        """
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._soon.begin_own(self._check_back(address, command))
        elif answer is not None and not command.is_oneway:
            return self._questions.ask(command, answer)
        return None

    async def _check_back(self, address: str, command: Command) -> None:
        broker = command.ext_fields.get("bname", "")
        if not broker:
            found = self.upstream.known_brokers() or await self.upstream.brokers()
            broker = next((each.name for each in found if address in each.addresses.values()), "")
        await self._producing.check_back(broker, command)


def refusal(name: str, code: Code, text: str) -> Any:
    """Return the answer to a call that is refused."""
    response = TYPES[f"{name}Response"]()
    response.status.code, response.status.message = code, text
    return response
