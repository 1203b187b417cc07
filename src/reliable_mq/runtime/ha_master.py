"""The master's side of replication: sends the log to slaves, and takes their reports.

It receives connections of slaves, and is called when the log has grown. It reads the log from the
page cache and sends it as fast as each slave takes it. A slow slave holds back nobody else.
Source: Apache RocketMQ `DefaultHAService`, `DefaultHAConnection`.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from reliable_mq.broker_core.store.commit_log import CommitLog, LogBatch
from reliable_mq.errors import AddressRefused, FrameError, InvariantBroken
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.ha_frames import (
    HINT_BEATS,
    TRANSFER_SIZE_MAX,
    ReportReader,
    encode_transfer_head,
)
from reliable_mq.replication.ha_status import SlaveState, doubt_others, is_in_sync
from reliable_mq.runtime.acceptor import Acceptor
from reliable_mq.runtime.connection_limits import Admission, ConnectionLimits
from reliable_mq.runtime.host_names import bound_sockets, reason_of
from reliable_mq.runtime.slave_door import SlaveDoor
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record import address_of

log = limited_log(__name__)

HEARTBEAT_SECONDS = 5.0
"""After so long without a transfer a slave gets a heartbeat: `haSendHeartbeatInterval`."""
SILENT_SECONDS = 20.0
"""A slave that reports nothing for so long is gone: `haHousekeepingInterval`."""
_TEND_SECONDS = 1.0
_CONNECTIONS_MAX = 100
GATHER_SECONDS = 0.005
"""So long a master that waits for no slave gathers what it sends."""
FINISH_SECONDS = 1.0
"""So long a master that stops waits until its slaves have reported the end of its log."""
_LOOK_SECONDS = 0.002
_TURN_SIZE = 128 * 1024  # bytes that one slave gets in one turn of the loop: 0.1 ms
_SMALL_SIZE = 16 * 1024  # up to this, a copy costs less than a second piece
_UNSENT_SIZE = 256 * 1024  # above, a slave has to read first; written in one step of the loop


class HaMaster:
    """Sends the log of this broker to its slaves.

    Args:
        door: who may follow.
        on_report: called when a slave has reported more.
    """

    def __init__(
        self,
        door: SlaveDoor | None = None,
        on_report: Callable[[], None] = lambda: None,
    ) -> None:
        self.door = door or SlaveDoor()
        self._admission = Admission(ConnectionLimits())
        self.log: CommitLog
        self.on_report = on_report
        self.port = 0
        self.ips: list[str] = []
        self._acceptors: list[Acceptor] = []  # one for each address of the host
        self._connections: dict[SlaveConnection, None] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._is_gathering = False  # whether `advance` is due
        self._is_hint_due = False
        self.is_awaited = False  # whether clients wait for slaves

    def invariants(self) -> None:
        """No slave has acknowledged what it was not sent."""
        for slave in self.slaves:
            if slave.acknowledged > max(slave.next, 1):
                raise InvariantBroken(
                    f"{slave.address} has acknowledged {slave.acknowledged}, sent is {slave.next}"
                )

    @property
    def slaves(self) -> list[SlaveState]:
        """The slaves that are connected and have reported."""
        return [each.state for each in self._connections if each.state.next >= 0]

    @property
    def _counted(self) -> list[SlaveState]:
        """The slaves whose reports count: each connection is one."""
        return self.slaves

    def acknowledged_by(self, count: int, gap_max: int) -> tuple[int, bool]:
        """Return how far so many slaves have the log, and whether so many keep up with it.

        A slave that lacks `gap_max` bytes or more does not keep up. One that has only asked for the
        log is there, but has acknowledged nothing.
        """
        counted = self._counted
        best = sorted(counted, key=lambda each: each.acknowledged, reverse=True)[:count]
        if len(best) < count:
            return 0, False
        proven = sorted((each.proven for each in counted), reverse=True)[count - 1]
        return proven, is_in_sync(best[-1], self.log.end, gap_max)

    async def bind(self, host: str, port: int) -> None:
        """Bind the address; with port 0 the system chooses one. Call `serve` next.

        Raises:
            AddressRefused: when the address cannot be bound.
        """
        sockets = await bound_sockets(host, port)
        self.port = sockets[0].getsockname()[1]
        self.ips = [each.getsockname()[0] for each in sockets]
        self._acceptors = [Acceptor(each, self._is_hasty, self._accepted) for each in sockets]

    def _is_hasty(self, ip: str) -> bool:
        """Whether an address connects too often; see `Admission`."""
        refusal = self._admission.arrive(ip.partition("%")[0], time.monotonic())
        if refusal:
            broker_events.CONNECTION_TOO_MANY.log(log, client=ip, reason=refusal)
        return bool(refusal)

    def _accepted(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        return self.door.gated(SlaveConnection(self))

    async def serve(self, commit_log: CommitLog) -> None:
        """Send this log to the slaves that connect.

        Raises:
            AddressRefused: when another process has taken the address meanwhile.
        """
        self.log = commit_log
        try:
            for acceptor in self._acceptors:
                acceptor.start()
        except OSError as error:
            raise AddressRefused(
                f"port {self.port}: cannot listen here ({reason_of(error)}); choose another"
            ) from error
        self._tend()

    def advance(self) -> None:
        """Send what is new in the log to every slave that reads."""
        self._is_gathering = False
        for connection in self._connections:
            connection.push()

    def advance_by(self, batch: LogBatch) -> None:
        """Send a batch that was just written to every slave that reads."""
        for connection in self._connections:
            connection.push_batch(batch)

    def stored(self) -> None:
        """Let slaves have what is stored now.

        If no client waits for it, it is sent soon, together with what comes until then: each
        transfer costs both sides as much as several messages.
        """
        if self.is_awaited:
            self.advance()
        elif self._connections and not self._is_gathering:
            self._is_gathering = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self.advance)

    def hint(self) -> None:
        """Let slaves ask for the tables at once, behind what this turn of the loop does."""
        if self._connections and not self._is_hint_due:
            self._is_hint_due = True
            asyncio.get_running_loop().call_soon(self._hint)

    def _hint(self) -> None:
        self._is_hint_due = False
        for connection in self._connections:
            connection.hint()

    async def finish(self) -> None:
        """Send what slaves lack, and wait a moment for their reports: the log is closed next.

        A connection that is closed with unread reports is reset, and then what was sent is lost.
        """
        self.advance()
        until = time.monotonic() + FINISH_SECONDS
        while time.monotonic() < until and self._is_lacking:
            await asyncio.sleep(_LOOK_SECONDS)
        for connection in self._connections:
            connection.is_finished = True

    @property
    def _is_lacking(self) -> bool:
        return any(each.acknowledged < self.log.written for each in self.slaves)

    def _tend(self) -> None:
        """Send heartbeats, and close connections of slaves that are silent."""
        now = time.monotonic()
        for connection in list(self._connections):
            state = connection.state
            if now - state.heard > SILENT_SECONDS:
                connection.close(f"no report for {SILENT_SECONDS:g} s")
            elif state.next >= 0 and now - state.sent > HEARTBEAT_SECONDS:
                connection.send(b"")
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(_TEND_SECONDS, self._tend)

    def opened(self, connection: "SlaveConnection", ip: str) -> str:
        """Know a new connection from an address. Return why it is refused; "": it is not."""
        if refusal := self.door.refusal_at(ip):
            return refusal
        if len(self._connections) >= _CONNECTIONS_MAX:
            # Who only holds a place goes first: else strangers could lock slaves out.
            silent = next((each for each in self._connections if each.state.next < 0), None)
            if silent is None:
                return f"{_CONNECTIONS_MAX} slaves are connected"
            silent.cut_off(f"{_CONNECTIONS_MAX} connections are open, and it has reported nothing")
        self._connections[connection] = None
        return ""

    def lost(self, connection: "SlaveConnection") -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    async def close(self) -> None:
        """Stop to listen, and close all connections."""
        if self._beat is not None:
            self._beat.cancel()
        for acceptor in self._acceptors:
            await acceptor.close()
        for connection in list(self._connections):
            connection.close("")


class SlaveConnection(asyncio.Protocol):
    """One slave at the master."""

    _asks_first = True  # whether its first report only says where the copy begins

    def __init__(self, master: HaMaster) -> None:
        self._master = master
        self._reports = ReportReader()
        self._is_paused = False
        self._is_more_due = False
        self.is_finished = False  # whether it is sent nothing more of the log
        self._is_known = False  # whether the door has let it in
        self._transport: asyncio.Transport
        self.state = SlaveState("")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_SIZE)
        peer = transport.get_extra_info("peername")
        if not peer:  # it has left already
            self._transport.abort()
            return
        self.state = SlaveState(address_of(*peer[:2]), heard=time.monotonic())
        if refusal := self._master.opened(self, peer[0]):
            self.close(refusal)

    def secured(self, transport: asyncio.Transport) -> None:
        """Use an encrypted transport from now on, if the certificate of the slave is good."""
        self._transport = transport
        self._is_known = True
        door, cipher = self._master.door, transport.get_extra_info("ssl_object")
        if refusal := door.refusal_of_certificate(cipher):
            self.close(refusal)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if not self._is_known:
            self._is_known = True
            if refusal := self._master.door.refusal_of_plain(data):
                self.close(refusal)
                return
        try:
            report = self._read(data)
        except FrameError as error:
            self.close(str(error))
            return
        if report is None:
            return
        state, log_ = self.state, self._master.log
        state.heard = time.monotonic()
        # An empty slave may report 1: see `HaSlave`.
        most = max(log_.end, 1) if state.next < 0 else state.next
        if report > most:
            self.close(
                f"it reports offset {report}, and can have this log up to {most} only: it has "
                "another master's log; give it an empty store"
            )
            return
        is_first = state.next < 0
        if is_first:
            # An empty slave gets the whole log; Apache's master would send the newest file only.
            state.next = report or log_.start
            broker_events.SLAVE_FOLLOWS.log(log, slave=state.address, log_offset=state.next)
            if state.next >= log_.written:
                self.send(b"")  # it learns at once that it has everything
        state.acknowledged = report
        state.has_only_asked = is_first and self._asks_first
        if state.has_only_asked:
            doubt_others(self._master.slaves, state)
        self._master.on_report()
        if is_first:
            self.push()

    def push(self) -> None:
        """Send what the slave does not have, as much as one turn allows."""
        state, log_ = self.state, self._master.log
        if state.next < 0 or self._is_paused or self._is_more_due or self.is_finished:
            return
        if not log_.start <= state.next <= log_.written:
            if state.next < log_.start:
                self.close(
                    f"it asks for offset {state.next}, and the log begins at {log_.start}: the "
                    "slave was away too long; give it an empty store"
                )
            return
        left = _TURN_SIZE
        while state.next < log_.written and not self._is_paused:
            if left <= 0:
                self._is_more_due = True
                asyncio.get_running_loop().call_soon(self._push_more)
                return
            size = min(log_.written - state.next, self._room())
            data = log_.read(state.next, size)
            self.send(data)
            left -= len(data)

    def push_batch(self, batch: LogBatch) -> None:
        """Send a batch that was just written, from memory if the slave has all before it."""
        state = self.state
        parts = batch.writes[0].parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        # A transfer lies in one segment: Apache's slave writes it to one file.
        is_next = state.next == batch.end - len(data) and len(batch.writes) == 1
        if is_next and len(data) <= self._room() and not (self._is_paused or self._is_more_due):
            self.send(data)
        else:
            self.push()

    def hint(self) -> None:
        """Tell a slave that the tables have changed; one that reads nothing asks for them later."""
        if self.state.next >= 0 and not (self._is_paused or self.is_finished):
            for _ in range(HINT_BEATS):
                self.send(b"")

    def _push_more(self) -> None:
        self._is_more_due = False
        self.push()

    def send(self, data: bytes) -> None:
        """Send one transfer."""
        state = self.state
        head = self._head(len(data))
        if len(data) <= _SMALL_SIZE:
            self._transport.write(head + data)
        else:
            self._transport.writelines([head, data])
        state.next += len(data)
        state.sent = time.monotonic()
        state.rate.add(len(data), state.sent)

    def _read(self, data: bytes) -> int | None:
        """Return the newest report in what has arrived; None: there is none."""
        return self._reports.feed(data)

    def _room(self) -> int:
        """Return how many bytes the next transfer may have."""
        return TRANSFER_SIZE_MAX

    def _head(self, size: int) -> bytes:
        """Return what stands before the bytes of the next transfer."""
        return encode_transfer_head(self.state.next, size)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.push()

    def close(self, reason: str) -> None:
        """Close the connection; the log says why."""
        if reason:
            broker_events.SLAVE_CUT.log(log, slave=self.state.address, reason=reason)
        self._transport.close()

    def cut_off(self, reason: str) -> None:
        """Close the connection at once; the log says why."""
        broker_events.SLAVE_CUT.log(log, slave=self.state.address, reason=reason)
        self._master.lost(self)
        self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._master.lost(self)
        if self.state.next >= 0:
            broker_events.SLAVE_GONE.log(log, slave=self.state.address)
            self._master.on_report()
