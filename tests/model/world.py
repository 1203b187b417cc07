"""All moves of all processes, what time and misfortune do, and what must hold in every state."""

from collections.abc import Iterator

from tests.model import redis_model
from tests.model.protocol import CONSUMERS, HANDLING, Consuming, Move, crashed, worse
from tests.model.sending import COUNT_MAX, Sending
from tests.model.state import GONE, NOBODY, SCHEDULER, Pc, Sender, State

from reliable_mq.database.row_values import StubStatus
from reliable_mq.idempotency.claim import RowEvent, RowState, next_row

ROW_LEASE_PASSES = "the row's lease passes"


class World:
    """One world to be explored.

    Args:
        consuming: what consumers do; a flaw is another one.
        sending: what relay and scheduler do.
        renews_in_time: no lease of the row passes that somebody renews. Else any may, as when a
            process stands still: then the promises hold, and a handler may run beside another.
        has_lost_commits: the database has lost what Redis remembers.
    """

    def __init__(
        self,
        consuming: Consuming,
        sending: Sending,
        *,
        renews_in_time: bool = False,
        has_lost_commits: bool = False,
    ) -> None:
        self._consuming = consuming
        self._sending = sending
        self._renews_in_time = renews_in_time
        self._has_lost_commits = has_lost_commits

    def moves(self, state: State) -> Iterator[Move]:
        """Yield what the processes and time can do next."""
        yield from self._sending.relay_moves(state)
        for i in CONSUMERS:
            yield from self._consuming.consumer_moves(state, i)
        yield from self._sending.scheduler_moves(state)
        for name, after in _time(state):
            is_kept = self._renews_in_time and self._consuming.is_renewed(state)
            if not (is_kept and name == ROW_LEASE_PASSES):
                yield name, after

    def misfortunes(self, state: State) -> Iterator[Move]:
        """Yield which deaths and losses there can be next."""
        if not state.misfortunes:
            return
        less = worse(state)
        if state.key != redis_model.ABSENT:
            yield "Redis is flushed", less._replace(key=redis_model.ABSENT)
        for i in CONSUMERS:
            if state.consumers[i].pc is not Pc.IDLE:
                yield f"{i} is killed", crashed(less, i)
        if state.relay.pc is not Pc.OVER:
            yield "producer is killed", less._replace(relay=Sender(Pc.OVER))
        if state.scheduler.pc is not Pc.IDLE:
            yield "scheduler is killed", _scheduler_killed(less)

    def violation(self, state: State) -> str | None:
        """Return which promise this state breaks, None: none."""
        if self._renews_in_time and all(each.pc in HANDLING for each in state.consumers):
            return "handled twice at once"
        if (
            state.key.is_done
            and state.log.row is not RowState.CONSUMED
            and not self._has_lost_commits
        ):
            return "Redis says done, and nothing was consumed"
        return violation(state)


def _scheduler_killed(state: State) -> State:
    stub = state.stub
    if stub is not None and stub.owner == SCHEDULER:
        stub = stub._replace(owner=GONE)
    return state._replace(stub=stub, scheduler=Sender())


def _time(state: State) -> Iterator[Move]:
    """Yield which leases can pass now, also those of somebody who still works under them."""
    if state.key.is_alive:
        yield "the key's lease passes", state._replace(key=state.key._replace(is_alive=False))
    if state.log.row is RowState.RUNNING:
        row = next_row(state.log.row, RowEvent.EXPIRE)
        yield ROW_LEASE_PASSES, state._replace(log=state.log._replace(row=row))
    if state.stub is not None and state.stub.is_leased:
        stub = state.stub._replace(is_leased=False)
        yield "the stub's lease passes", state._replace(stub=stub)


def violation(state: State) -> str | None:
    """Return which promise this state breaks, None: none."""
    stub, is_consumed = state.stub, state.log.row is RowState.CONSUMED
    if state.effects > 1:
        return "P4: the effect happened twice"
    if is_consumed != (state.effects == 1):
        return "P4: the consume log and the effect disagree"
    if stub is None:
        return "P1: a message without a stub" if state.copies else None
    if not (is_consumed or stub.given_up) and any(each.pc is Pc.END for each in state.consumers):
        return "P4: acknowledged, and the database knows of no effect"
    if stub.status is StubStatus.CONFIRMED and not is_consumed:
        return "P2: confirmed, and not consumed"
    if stub.given_up and is_consumed:
        return "a consumed message was given up"
    if stub.is_told and not stub.given_up and stub.sends < COUNT_MAX:
        return "a person was told of a message that could still be sent"
    return None


def is_settled(state: State) -> bool:
    """Say whether the message has come to an end: consumed and confirmed, told of, or never was."""
    stub = state.stub
    if stub is None:
        return state.relay.pc is Pc.OVER
    if stub.is_told:
        return state.effects == 0 or stub.status is StubStatus.CONFIRMED
    return stub.status is StubStatus.CONFIRMED


__all__ = ["NOBODY", "World", "is_settled", "violation"]
