"""Flaws that the exploration must find: each is one decision of the protocol made otherwise."""

from collections.abc import Callable, Iterator, Mapping

from tests.model import redis_model
from tests.model.protocol import Consuming, Move, confirmed, put
from tests.model.sending import Sending
from tests.model.state import RELAY, Copy, Log, Pc, Sender, State, Stub

from reliable_mq.idempotency.claim import Claim, RowState


class InsertThenHandle(Consuming):
    """The seed: the log says CONSUMED and is committed, then the handler runs."""

    def inserted(self, state: State, i: int) -> State:
        after = super().inserted(state, i)
        if after.consumers[i].pc is Pc.IN_TX:
            return after._replace(log=Log(RowState.CONSUMED, 1))
        return after

    def committed(self, state: State, i: int) -> State:
        return self.ending(confirmed(state._replace(effects=state.effects + 1)), i, "done")


class KeyIsATombstone(Consuming):
    """The seed: SETNX says "done" before anything was done."""

    def answered(self, state: State, i: int, claim: Claim) -> State:
        return super().answered(state, i, claim)._replace(key=redis_model.DONE)


class BelievesRedis(Consuming):
    """What Redis calls done is acknowledged without a look at the row."""

    @staticmethod
    def is_consumed(state: State) -> bool:
        return True


class AcknowledgesTheHeld(Consuming):
    """Who finds that another is at it takes the message for done."""

    def later(self, state: State, i: int, fate: str) -> State:
        return self.ending(state, i, "done")


class TakesOverTheLiving(Consuming):
    """The row's lease is not looked at, and its token is not asked for."""

    def received(self, state: State, i: int) -> State:
        me = state.consumers[i]._replace(pc=Pc.RUN, has_receipt=True)
        if state.log.row is RowState.CONSUMED:
            return self.ending(state, i, "done")
        return put(state._replace(log=Log(RowState.RUNNING, me.attempt, i)), i, me)

    def is_ours(self, log: Log, i: int) -> bool:
        return True


class ConsumesWithoutAToken(Consuming):
    """Whoever ends its handler writes CONSUMED, also when the claim went to another."""

    def is_ours(self, log: Log, i: int) -> bool:
        return True

    def committed(self, state: State, i: int) -> State:
        after = state._replace(log=Log(RowState.CONSUMED, 1), effects=state.effects + 1)
        return self.ending(confirmed(after), i, "done")


class TellsRedisFirst(Consuming):
    """Redis is told "done" before the commit."""

    def inserted(self, state: State, i: int) -> State:
        after = super().inserted(state, i)
        return after._replace(key=redis_model.DONE)


class RenewsWhatBeganWithAReceipt(Consuming):
    """The lease of a row is renewed only where Redis's answer to the claim asked for it."""

    def answered(self, state: State, i: int, claim: Claim) -> State:
        after = super().answered(state, i, claim)
        me = after.consumers[i]
        return put(after, i, me._replace(has_receipt=me.pc is Pc.RECEIVE))

    def received(self, state: State, i: int) -> State:
        after = super().received(state, i)
        has_receipt = state.consumers[i].has_receipt
        return put(after, i, after.consumers[i]._replace(has_receipt=has_receipt))


class GivesUpUnasked(Consuming):
    """A dead letter is written without a look at the row."""

    def gave_up(self, state: State, i: int) -> State:
        stub = state.stub
        assert stub is not None
        after = state._replace(stub=stub._replace(given_up=True))
        return put(after, i, state.consumers[i]._replace(pc=Pc.BURY))


class SendsBeforeTheCommit(Sending):
    """The message leaves, then the transaction commits."""

    def relay_moves(self, state: State) -> Iterator[Move]:
        if state.relay.pc is Pc.IDLE:
            early = state._replace(copies=(Copy(False),), relay=Sender(Pc.CONFIRM))
            yield "producer sends", early
        elif state.relay.pc is Pc.CONFIRM:
            yield "producer commits", state._replace(stub=Stub(), relay=Sender(Pc.OVER))
        else:
            yield from super().relay_moves(state)


class SendsAfterTheCommitOnly(Sending):
    """Nobody looks after a stub whose relay died: there is no scheduler."""

    def is_due(self, stub: Stub) -> bool:
        return False


class ConfirmsWhatWasSent(Sending):
    """The broker's acknowledgement confirms, though a group must have the message."""

    def recorded(self, state: State, sender: Sender, owner: int) -> State:
        after = super().recorded(state, sender, owner)
        return confirmed(after) if owner == RELAY else after


CONSUMING: Mapping[str, Callable[[], Consuming]] = {
    "insert, then handle": InsertThenHandle,
    "the key is a tombstone": KeyIsATombstone,
    "acknowledges the held": AcknowledgesTheHeld,
    "takes over the living": lambda: TakesOverTheLiving(log_receipt=True),
    "consumes without a token": lambda: ConsumesWithoutAToken(log_receipt=True),
    "tells Redis first": TellsRedisFirst,
    "gives up unasked": lambda: GivesUpUnasked(attempts_max=1),
}
SENDING: Mapping[str, Callable[[], Sending]] = {
    "sends before the commit": SendsBeforeTheCommit,
    "no scheduler": SendsAfterTheCommitOnly,
    "confirms what was sent": ConfirmsWhatWasSent,
}
