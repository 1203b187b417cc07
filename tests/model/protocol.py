"""The protocol as moves between states. What it decides, the code's own tables decide here too:

`first_step`, `STEP_OF_ROW`, `next_row` and `attempt_after` of `idempotency.claim`, `next_status`
and `due_state` of `outbox.stub`. Written anew is only what holds them together: which process does
what in one step that nobody sees the middle of (a commit, a call of Redis, a send).

The methods are what flaws change, see `flaws`.
"""

from collections.abc import Iterator

from tests.model import redis_model
from tests.model.state import (
    CONSUMERS,
    GONE,
    NOBODY,
    Consumer,
    Copy,
    Log,
    Pc,
    State,
)

from reliable_mq.database.row_values import StubStatus
from reliable_mq.idempotency.claim import (
    STEP_OF_ROW,
    UNREACHABLE,
    Claim,
    ClaimStep,
    RowEvent,
    RowState,
    attempt_after,
    attempt_claimed,
    first_step,
    next_row,
)
from reliable_mq.outbox.stub import StubEvent, next_status, statuses_before

Move = tuple[str, State]
HANDLING = (Pc.RUN, Pc.IN_TX)
"""Where a consumer is while its handler runs."""


class Consuming:
    """What the two consumers do.

    Args:
        log_receipt: take the two-step form always.
        attempts_max: attempts after which the message is given up.
    """

    def __init__(self, *, log_receipt: bool = False, attempts_max: int = 2) -> None:
        self.log_receipt = log_receipt
        self.attempts_max = attempts_max

    def consumer_moves(self, state: State, i: int) -> Iterator[Move]:
        """Yield what consumer `i` can do next."""
        me = state.consumers[i]
        if me.pc is Pc.IDLE:
            yield from self._takes(state, i)
        elif me.pc is Pc.CLAIM:
            yield from self.claims(state, i)
        elif me.pc is Pc.END or me.pc is Pc.AGAIN:
            yield from self._ends(state, i)
        elif me.pc is Pc.BURY:
            yield f"{i} buries", self.ending(state, i, "fail")._replace(letters=state.letters + 1)
        elif self._may_touch_the_row(state, i):
            yield from self._works(state, i)

    def _works(self, state: State, i: int) -> Iterator[Move]:
        """Yield a move that touches the row: it waits for who has it in an open transaction."""
        match state.consumers[i].pc:
            case Pc.RECEIVE:
                yield f"{i} receives", self.received(state, i)
            case Pc.BEGIN:
                yield f"{i} inserts", self.inserted(state, i)
            case Pc.RUN:
                yield f"{i} runs", self.ran(state, i)
                yield f"{i} renews its lease", self.renewed(state, i)
                yield from self._fails(state, i)
            case Pc.IN_TX:
                yield f"{i} commits", self.committed(state, i)
                yield from self._fails(state, i)
            case Pc.FAILING:
                yield f"{i} records a failure", self.failed(state, i)
            case Pc.GIVE_UP:
                yield f"{i} gives up", self.gave_up(state, i)

    @staticmethod
    def _may_touch_the_row(state: State, i: int) -> bool:
        return state.consumers[1 - i].pc is not Pc.IN_TX

    def _takes(self, state: State, i: int) -> Iterator[Move]:
        for at, copy in enumerate(state.copies):
            if copy.is_finished:
                continue
            left = state.misfortunes - bool(copy.holders)  # delivered again: a rebalance
            if left < 0:
                continue
            copies = _with(state.copies, at, copy._replace(holders=copy.holders | 1 << i))
            after = state._replace(misfortunes=left, copies=copies)
            yield f"{i} takes copy {at}", put(_forget(after, i), i, Consumer(Pc.CLAIM, at))
            return  # a queue is read in its order

    def claims(self, state: State, i: int) -> Iterator[Move]:
        """Yield what a claim can come to."""
        claim, key = redis_model.claimed(state.key, i)
        yield f"{i} claims", self.answered(state._replace(key=key), i, claim)
        if state.misfortunes:
            yield f"{i} does not reach Redis", self.answered(worse(state), i, UNREACHABLE)

    def answered(self, state: State, i: int, claim: Claim) -> State:
        """Return what follows a claim, by the code's own table."""
        me = state.consumers[i]
        step = first_step(
            claim,
            attempts_max=self.attempts_max,
            log_receipt=self.log_receipt,
            is_consumed=self.is_consumed(state),
        )
        me = me._replace(attempt=attempt_claimed(claim, self.attempts_max))
        match step:
            case ClaimStep.ACKNOWLEDGE:
                return put(state, i, me._replace(pc=Pc.END))
            case ClaimStep.LATER:
                return put(state, i, me._replace(pc=Pc.AGAIN))
            case ClaimStep.GIVE_UP:
                return put(state, i, me._replace(pc=Pc.GIVE_UP))
            case ClaimStep.ONE_COMMIT:
                return put(state, i, me._replace(pc=Pc.BEGIN))
            case ClaimStep.RECEIVE_FIRST:
                return put(state, i, me._replace(pc=Pc.RECEIVE))
            case ClaimStep.SINGLY | ClaimStep.ALONE | ClaimStep.LOOK:
                raise AssertionError("what a row says, not a claim")

    @staticmethod
    def is_consumed(state: State) -> bool:
        """Return what a look at the row says."""
        return state.log.row is RowState.CONSUMED

    def received(self, state: State, i: int) -> State:
        """Commit a RECEIVED row, or settle what another row says."""
        me, log = state.consumers[i], state.log
        step = ClaimStep.RECEIVE_FIRST if log.row is RowState.ABSENT else STEP_OF_ROW[log.row]
        if step is ClaimStep.ACKNOWLEDGE:
            return self.ending(state, i, "done")
        if step is ClaimStep.LATER:
            return self.later(state, i, "back")
        attempt = attempt_after(log.row, log.attempt, me.attempt)
        after = state._replace(log=Log(next_row(log.row, RowEvent.RECEIVE), attempt, i))
        pc = Pc.RUN if attempt <= self.attempts_max else Pc.GIVE_UP
        return put(after, i, me._replace(pc=pc, attempt=attempt, has_receipt=True))

    def inserted(self, state: State, i: int) -> State:
        """Insert a CONSUMED row into the open transaction, or settle what a row there says."""
        me, log = state.consumers[i], state.log
        if log.row is RowState.ABSENT:
            return put(state, i, me._replace(pc=Pc.IN_TX, has_receipt=False))
        step = STEP_OF_ROW[log.row]
        if step is ClaimStep.ACKNOWLEDGE:
            return self.ending(state, i, "done")
        if step is ClaimStep.LATER:
            return self.later(state, i, "back")
        return put(state, i, me._replace(pc=Pc.RECEIVE))

    def ran(self, state: State, i: int) -> State:
        """Run the handler and turn our RECEIVED row into CONSUMED, in the open transaction."""
        if self.is_ours(state.log, i):
            return put(state, i, state.consumers[i]._replace(pc=Pc.IN_TX))
        return self.later(state, i, "")  # the claim is lost: the effect is rolled back

    def renewed(self, state: State, i: int) -> State:
        """Let the row's lease end later, if it bears our token."""
        log = state.log
        if not (state.consumers[i].has_receipt and self.is_ours(log, i)):
            return state
        return state._replace(log=log._replace(row=next_row(log.row, RowEvent.RENEW)))

    @staticmethod
    def is_renewed(state: State) -> bool:
        """Say whether somebody runs under the row's lease and renews it, so that it cannot pass."""
        if state.log.owner not in CONSUMERS:
            return False
        owner = state.consumers[state.log.owner]
        return owner.has_receipt and owner.pc in (*HANDLING, Pc.FAILING)

    def is_ours(self, log: Log, i: int) -> bool:
        """Say whether the row is RECEIVED and bears our token."""
        return log.owner == i and log.row in {RowState.RUNNING, RowState.IN_DOUBT}

    def committed(self, state: State, i: int) -> State:
        """Commit row, effect and confirmation at once."""
        row = next_row(state.log.row, RowEvent.CONSUME)
        after = state._replace(
            log=Log(row, state.consumers[i].attempt, NOBODY), effects=state.effects + 1
        )
        return self.ending(confirmed(after), i, "done")

    def _fails(self, state: State, i: int) -> Iterator[Move]:
        if state.misfortunes:
            me = state.consumers[i]._replace(pc=Pc.FAILING)
            yield f"{i}'s handler fails", put(worse(state), i, me)

    def failed(self, state: State, i: int) -> State:
        """Record a failure, if the claim is still ours; else do what the row says."""
        me, log = state.consumers[i], state.log
        if log.row is RowState.CONSUMED:
            return self.ending(state, i, "done")
        if log.owner not in (NOBODY, i):
            return self.later(state, i, "fail")
        attempt = max(me.attempt, log.attempt)
        after = state._replace(log=Log(next_row(log.row, RowEvent.FAIL), attempt, NOBODY))
        if me.attempt >= self.attempts_max:
            return put(exhausted(after), i, me._replace(pc=Pc.BURY))
        return self.later(after, i, "fail")

    def gave_up(self, state: State, i: int) -> State:
        """Make a dead letter, unless the row says that the message was consumed or is at work.

        Nor if the row knows of fewer attempts than were claimed: the last one is made then.
        """
        me, log = state.consumers[i], state.log
        step = ClaimStep.RECEIVE_FIRST if log.row is RowState.ABSENT else STEP_OF_ROW[log.row]
        if log.row is RowState.RUNNING and log.owner == i:
            step = ClaimStep.RECEIVE_FIRST
        if step is ClaimStep.ACKNOWLEDGE:
            return self.ending(state, i, "done")
        if step is ClaimStep.LATER:
            return self.later(state, i, "back")
        attempt = attempt_after(log.row, log.attempt, me.attempt)
        if attempt <= self.attempts_max:
            return self.received(state, i)
        after = state._replace(log=Log(RowState.FAILED, attempt, NOBODY))
        return put(exhausted(after), i, me._replace(pc=Pc.BURY))

    def ending(self, state: State, i: int, fate: str) -> State:
        """Return the state in which the delivery is to be acknowledged."""
        return put(state, i, state.consumers[i]._replace(pc=Pc.END, fate=fate))

    def later(self, state: State, i: int, fate: str) -> State:
        """Return the state in which the delivery is to come again."""
        return put(state, i, state.consumers[i]._replace(pc=Pc.AGAIN, fate=fate))

    def _ends(self, state: State, i: int) -> Iterator[Move]:
        """Yield the two things that an end consists of, in either order."""
        me = state.consumers[i]
        if me.fate:
            after = put(state, i, me._replace(fate=""))
            key = redis_model.settled(state.key, i, me.fate)
            yield f"{i} tells Redis {me.fate}", _idle_if_over(after._replace(key=key), i)
            if state.misfortunes:
                yield f"{i} tells Redis nothing", _idle_if_over(worse(after), i)
        if me.copy >= 0:
            copy = state.copies[me.copy]
            copy = copy._replace(
                holders=copy.holders & ~(1 << i),
                is_finished=copy.is_finished or me.pc is Pc.END,
            )
            copies = _with(state.copies, me.copy, copy)
            after = put(state._replace(copies=copies), i, me._replace(copy=-1))
            verb = "acknowledges" if me.pc is Pc.END else "postpones"
            yield f"{i} {verb}", _idle_if_over(after, i)


def put(state: State, i: int, consumer: Consumer) -> State:
    """Return the state with another consumer `i`."""
    first, second = state.consumers
    return state._replace(consumers=(consumer, second) if i == 0 else (first, consumer))


def worse(state: State) -> State:
    """Return the state with one misfortune less to come."""
    return state._replace(misfortunes=state.misfortunes - 1)


def confirmed(state: State) -> State:
    """Confirm the stub, if it may be."""
    stub = state.stub
    assert stub is not None
    if stub.status not in statuses_before(StubEvent.CONFIRM):
        return state
    status = next_status(stub.status, StubEvent.CONFIRM)
    return state._replace(stub=stub._replace(status=status))


def exhausted(state: State) -> State:
    """Let the stub be given up, if it may be."""
    stub = state.stub
    assert stub is not None
    if stub.status not in statuses_before(StubEvent.EXHAUSTED):
        return state
    assert next_status(stub.status, StubEvent.EXHAUSTED) is StubStatus.UNCONFIRMED
    return state._replace(stub=stub._replace(given_up=True))


def crashed(state: State, i: int) -> State:
    """Return the state after consumer `i` was killed: what it had in hand comes again."""
    copies = tuple(copy._replace(holders=copy.holders & ~(1 << i)) for copy in state.copies)
    return put(_forget(state._replace(copies=copies), i), i, Consumer())


def _forget(state: State, i: int) -> State:
    """Let whatever bears the former token of consumer `i` be nobody's that lives."""
    if state.log.owner == i:
        state = state._replace(log=state.log._replace(owner=GONE))
    if state.key.owner == i:
        state = state._replace(key=state.key._replace(owner=GONE))
    return state


def _idle_if_over(state: State, i: int) -> State:
    me = state.consumers[i]
    return state if me.fate or me.copy >= 0 else put(state, i, Consumer())


def _with(copies: tuple[Copy, ...], at: int, copy: Copy) -> tuple[Copy, ...]:
    return (*copies[:at], copy, *copies[at + 1 :])


__all__ = ["CONSUMERS", "HANDLING", "Consuming", "Move", "confirmed", "crashed", "put", "worse"]
