"""What the producer's relay and the resend scheduler do, as moves between states.

What becomes of a stub is decided by `next_status`, `statuses_before` and `due_state` of the code.
"""

from collections.abc import Iterator

from tests.model.protocol import Move, confirmed, worse
from tests.model.state import NOBODY, RELAY, SCHEDULER, Copy, Pc, Sender, State, Stub

from reliable_mq.database.row_values import StubStatus
from reliable_mq.idempotency.claim import RowState
from reliable_mq.outbox.stub import DueState, GroupView, Position, StubEvent, due_state, next_status
from reliable_mq.outbox.stub import Stub as StubRow

COUNT_MAX = 2
"""Sends after which a person is told; so there are at most so many copies, and what failed."""
_UNCONFIRMED = StubStatus.UNCONFIRMED


class Sending:
    """What the producer's process and the scheduler's do."""

    def relay_moves(self, state: State) -> Iterator[Move]:
        """Yield what the producer's process can do next."""
        match state.relay.pc:
            case Pc.IDLE:
                yield "producer commits", self.written(state)
            case Pc.HANDED:
                yield "relay looks", self.looked(state)
            case Pc.SENDING:
                for name, after, sender in self._sends(state, is_resent=False):
                    yield f"relay {name}", after._replace(relay=sender)
            case Pc.RECORD:
                after = self.recorded(state, state.relay, RELAY)
                yield "relay records", after._replace(relay=Sender(Pc.OVER))

    def written(self, state: State) -> State:
        """Commit the business transaction: the stub is there, under a lease of its relay."""
        stub = Stub(owner=RELAY, is_leased=True)
        return state._replace(stub=stub, relay=Sender(Pc.HANDED))

    def looked(self, state: State) -> State:
        """Read the stub back: what is not there, or not ours any more, is not sent."""
        stub = state.stub
        is_ours = (
            stub is not None
            and stub.owner == RELAY
            and stub.status is _UNCONFIRMED
            and stub.position < 0
        )
        return state._replace(relay=Sender(Pc.SENDING if is_ours else Pc.OVER))

    def _sends(self, state: State, *, is_resent: bool) -> Iterator[tuple[str, State, Sender]]:
        """Yield what a send can come to: stored and known, stored and unknown, or not stored."""
        sends = state.stub.sends + 1 if state.stub is not None else 1
        stored = state._replace(copies=(*state.copies, Copy(is_resent)))
        yield "sends", stored, Sender(Pc.RECORD, sends, len(state.copies))
        if state.misfortunes:
            unknown = Sender(Pc.RECORD, sends)
            yield "sends and is not answered", worse(stored), unknown
            yield "does not reach the broker", worse(state), unknown

    def recorded(self, state: State, sender: Sender, owner: int) -> State:
        """Write down what a send came to, if the stub is still the sender's."""
        stub = state.stub
        if stub is None or stub.owner != owner:
            return state
        event = StubEvent.SENT if sender.position >= 0 else StubEvent.SEND_FAILED
        position = sender.position if sender.position >= 0 else stub.position
        after = stub._replace(
            status=next_status(stub.status, event),
            sends=sender.sends,
            position=position,
            owner=NOBODY,
            is_leased=False,
        )
        return state._replace(stub=after)

    def scheduler_moves(self, state: State) -> Iterator[Move]:
        """Yield what the resend scheduler can do next."""
        me, stub = state.scheduler, state.stub
        if stub is None:
            return
        match me.pc:
            case Pc.IDLE:
                if self.is_due(stub):
                    yield "scheduler claims", self.claimed(state, stub)
            case Pc.SENDING:
                for name, after, sender in self._sends(state, is_resent=True):
                    yield f"scheduler {name}", after._replace(scheduler=sender)
            case Pc.RECORD:
                yield "scheduler records", _rests(self.recorded(state, me, SCHEDULER))
            case Pc.LOOK:
                seen = Sender(Pc.ASK, seen=state.log.row)
                yield "scheduler reads the log", state._replace(scheduler=seen)
            case Pc.ASK:
                yield "scheduler asks the broker", self.asked(state, stub)
            case Pc.REST:
                yield "scheduler lets it rest", _rests(_given_back(state, stub))
            case Pc.CONFIRM:
                yield "scheduler confirms", _rests(self.caught_up(state))
            case Pc.ESCALATE:
                yield "scheduler escalates", self.escalated(state, stub)

    def is_due(self, stub: Stub) -> bool:
        """Say whether the stub's resend time can have come."""
        return stub.status is _UNCONFIRMED and not stub.is_leased and not stub.is_told

    def claimed(self, state: State, stub: Stub) -> State:
        """Claim the stub, as one that is used up, unsent or sent."""
        if stub.given_up or stub.sends >= COUNT_MAX:
            pc = Pc.ESCALATE
        else:
            pc = Pc.SENDING if stub.position < 0 else Pc.LOOK
        after = stub._replace(owner=SCHEDULER, is_leased=True)
        return state._replace(stub=after, scheduler=Sender(pc))

    def asked(self, state: State, stub: Stub) -> State:
        """Decide what to do with a stub that was sent, by the code's own table."""
        seen = state.scheduler.seen
        view = GroupView(
            consumed=seen is RowState.CONSUMED,
            attempt_alive=seen is RowState.RUNNING,
            passed=_committed_offset(state) > stub.position,
        )
        row = StubRow(
            seq=1,
            message_id="m",
            topic="t",
            content=b"",
            required_groups=("g",),
            position=Position("b", 0, stub.position),
        )
        pc = {
            DueState.SEND: Pc.SENDING,
            DueState.WAIT: Pc.REST,
            DueState.CONFIRM: Pc.CONFIRM,
        }[due_state(row, (view,))]
        return state._replace(scheduler=Sender(pc))

    def caught_up(self, state: State) -> State:
        """Confirm the stub, if the log says so in the same transaction."""
        return confirmed(state) if state.log.row is RowState.CONSUMED else state

    def escalated(self, state: State, stub: Stub) -> State:
        """Tell a person, unless the log says that the message was consumed."""
        if state.log.row is RowState.CONSUMED:
            return state._replace(scheduler=Sender(Pc.CONFIRM))
        if stub.owner != SCHEDULER or stub.status is not _UNCONFIRMED:
            return _rests(state)
        told = stub._replace(is_told=True, owner=NOBODY, is_leased=False)
        return _rests(state._replace(stub=told))


def _committed_offset(state: State) -> int:
    """Return how far the group has come: the first copy that is not finished."""
    for at, copy in enumerate(state.copies):
        if not copy.is_finished:
            return at
    return len(state.copies)


def _given_back(state: State, stub: Stub) -> State:
    if stub.owner != SCHEDULER or stub.status is not _UNCONFIRMED:
        return state
    return state._replace(stub=stub._replace(owner=NOBODY, is_leased=False))


def _rests(state: State) -> State:
    return state._replace(scheduler=Sender())
