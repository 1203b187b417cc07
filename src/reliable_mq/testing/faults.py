"""What goes wrong in a world of tests: planned by the test, met by the next message it concerns.

Values only. `MessageWorld.faults` is one of these.
"""

from random import Random
from typing import Any, Literal, TypeVar

import msgspec

from reliable_mq.testing.crash_switch import CrashSwitch
from reliable_mq.topic import Topic, name_of
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

T = TypeVar("T")

Kind = Literal["duplicate", "lost acknowledgement", "lost reply", "delay", "limbo"]
EVERYWHERE = "*"

_SENDS = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


class Fault(msgspec.Struct):
    """One thing that will go wrong, `left` more times."""

    kind: Kind
    topic: str
    left: int
    seconds: float = 0.0


class Faults:
    """The faults of one world.

    Args:
        seed: decides the order in which `reorder` hands messages out.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self._planned: list[Fault] = []
        self._reorders = False
        #: whether no broker and no name server can be reached
        self.is_broker_away = False
        #: kills the process at one of its steps; see `MessageWorld.crash`
        self.switch = CrashSwitch()

    def duplicate(self, topic: str | Topic[Any] = EVERYWHERE, *, times: int = 1) -> None:
        """Hand the next messages of a topic out twice, though they were acknowledged."""
        self._plan("duplicate", topic, times)

    def lose_acknowledgement(self, topic: str | Topic[Any] = EVERYWHERE, *, times: int = 1) -> None:
        """Let the next messages of a topic come again, because nobody hears that they are done."""
        self._plan("lost acknowledgement", topic, times)

    def lose_reply(self, topic: str | Topic[Any] = EVERYWHERE, *, times: int = 1) -> None:
        """Let the broker store what is sent next, and its answer never arrive."""
        self._plan("lost reply", topic, times)

    def delay(
        self, seconds: float, topic: str | Topic[Any] = EVERYWHERE, *, times: int = 1
    ) -> None:
        """Hand the next messages of a topic out so much later."""
        self._plan("delay", topic, times, seconds)

    def keep_halves_in_limbo(self, *, times: int = 1) -> None:
        """Let the next ends of half messages, commit or rollback, never reach the broker."""
        self._plan("limbo", EVERYWHERE, times)

    def reorder(self, *, is_on: bool = True) -> None:
        """Hand messages out in any order that their ordering keys allow."""
        self._reorders = is_on

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        self._planned.clear()
        self._reorders = self.is_broker_away = False

    @property
    def planned(self) -> list[Fault]:
        """What nobody has met yet."""
        return list(self._planned)

    # what the world asks

    def meet(self, kind: Kind, topic: str) -> Fault | None:
        """Return the fault that a message of a topic meets now, if there is one."""
        for fault in self._planned:
            if fault.kind == kind and fault.topic in (EVERYWHERE, topic):
                fault.left -= 1
                if not fault.left:
                    self._planned.remove(fault)
                return fault
        return None

    def ordered(self, row: list[T]) -> list[T]:
        """Return a row in the order in which it is handed out."""
        return self._random.sample(row, len(row)) if self._reorders else row

    def takes_request(self, command: Command) -> bool:
        """Say whether a request never arrives."""
        return command.code == RequestCode.END_TRANSACTION and bool(self.meet("limbo", EVERYWHERE))

    def takes_reply(self, command: Command) -> bool:
        """Say whether the answer to a request never arrives."""
        topic = command.ext_fields.get("b", "")
        return command.code in _SENDS and bool(self.meet("lost reply", topic))

    def _plan(self, kind: Kind, topic: str | Topic[Any], times: int, seconds: float = 0.0) -> None:
        if times < 1 or seconds < 0:
            raise ValueError(f"{kind}: times={times}, seconds={seconds}: nothing would happen")
        self._planned.append(Fault(kind, name_of(topic), times, seconds))
