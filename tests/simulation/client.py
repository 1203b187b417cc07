"""Clients that ask at random, and remember what they learn.

A client asks over its link and waits for answers by opaque; when the link is lost, it connects
again. `Asker` is one that draws its requests from the kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import msgspec
from tests.simulation.machine import Machine
from tests.simulation.network import Link
from tests.simulation.plan import Plan
from tests.simulation.world import World

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.frame import JSON, ROCKETMQ
from reliable_mq.wire.headers import CheckTransactionHeader

Heard = Callable[[Command | None], None]
"""Takes the answer to a request; None when it can come no more."""


class Caller:
    """One client's end of its link, renewed when it is lost."""

    is_broker = False

    def __init__(
        self,
        world: World,
        machine: Machine,
        serialize_types: Sequence[int] = (JSON, JSON, ROCKETMQ),
    ) -> None:
        self._world = world
        self._machine = machine
        self._link: Link | None = None
        self._opaque = 0
        self._waiting: dict[int, Heard] = {}
        self._serialize_type = world.random.choice(serialize_types)
        self.on_request: Callable[[Command], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None

    def _connected(self) -> Link | None:
        if self._link is None and self._machine.is_serving:
            self._link = self._machine.network.connect(self)
        return self._link

    def ask(self, command: Command, heard: Heard) -> bool:
        """Send a request; return whether there is a link."""
        link = self._connected()
        if link is None:
            return False
        self._opaque += 1
        command.opaque = self._opaque
        command.serialize_type = self._serialize_type
        if not command.is_oneway:
            self._waiting[self._opaque] = heard
        self._machine.network.send(link, command)
        return True

    def forget(self, opaque: int) -> None:
        """Wait no longer for an answer."""
        self._waiting.pop(opaque, None)

    @property
    def last_opaque(self) -> int:
        """The opaque of the last request."""
        return self._opaque

    def came(self, link: Link, command: Command) -> None:
        """Take a command that the broker sent."""
        if not command.is_reply:
            self.on_request(command)
            return
        heard = self._waiting.pop(command.opaque, None)
        if heard is not None and link is self._link:
            heard(command)

    def lost(self, link: Link) -> None:
        """Note that the link is gone: no answer can come any more."""
        if link is not self._link:
            return
        self._link = None
        waiting, self._waiting = self._waiting, {}
        for heard in waiting.values():
            heard(None)
        self.on_lost()

    def disconnect(self) -> None:
        """Cut the link."""
        if self._link is not None:
            self._machine.network.cut(self._link)


class Memory(msgspec.Struct, kw_only=True):
    """What an asker knows. Places are (topic, queue id)."""

    number: int
    plan: Plan
    random: Random
    group: str
    now_ms: int = 0
    sent_count: int = 0
    next_offsets: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)
    halves: list[tuple[int, int]] = msgspec.field(default_factory=list)  # log, queue offset
    recall_handles: list[tuple[str, str]] = msgspec.field(default_factory=list)  # topic, handle
    log_offsets: list[int] = msgspec.field(default_factory=list)  # of messages it has seen

    def place(self) -> tuple[str, int]:
        """Return a queue of one of the plan's topics."""
        topic = self.random.choice(list(self.plan.topics))
        return topic, self.random.randrange(self.plan.topics[topic])

    def saw(self, log_offset: int) -> None:
        """Remember some of the messages."""
        if len(self.log_offsets) < 50:
            self.log_offsets.append(log_offset)
        else:
            self.log_offsets[self.random.randrange(50)] = log_offset


class Asking(Protocol):
    """The client's side of a kind of requests."""

    def make(self, memory: Memory) -> Command | None:
        """Return a request, or None when there is nothing to ask."""
        ...

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        """Remember what an answer says."""
        ...


class Asker:
    """A client that asks at random times for random things, whatever became of the last."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        number: int,
        kinds: Mapping[str, Asking],
        weights: Sequence[int],
    ) -> None:
        self._world = world
        self._names = list(kinds)
        self._kinds = kinds
        self._weights = weights
        self.asks_in_calm = False
        self._memory = Memory(
            number=number,
            plan=world.plan,
            random=world.random,
            group=world.random.choice(world.plan.groups),
        )
        self.caller = Caller(world, machine)
        self.caller.on_request = self._asked
        world.later(world.around(world.plan.think_ms), self._ask)

    def _ask(self) -> None:
        world = self._world
        if world.is_calm and not self.asks_in_calm:
            return
        world.later(world.around(world.plan.think_ms), self._ask)
        (name,) = world.random.choices(self._names, self._weights)
        kind = self._kinds[name]
        self._memory.now_ms = world.now_ms
        command = kind.make(self._memory)
        if command is not None:
            self.caller.ask(command, lambda reply: self._learn(kind, command, reply))

    def _asked(self, command: Command) -> None:
        """Remember a half that the broker asks for; it may be ended some time."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            header = CheckTransactionHeader.decode(command.ext_fields)
            self._memory.halves.append((header.commit_log_offset, header.tran_state_table_offset))

    def _learn(self, kind: Asking, command: Command, reply: Command | None) -> None:
        if reply is not None:
            kind.learn(self._memory, command, reply)
