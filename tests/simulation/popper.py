"""A consumer by the message: it pops, acknowledges, asks for more time, or lets messages go."""

from typing import NamedTuple

from tests.simulation.client import Caller, Heard
from tests.simulation.facts import Violation
from tests.simulation.kinds.pops import new_handle
from tests.simulation.machine import Machine
from tests.simulation.popped import BROKER, TAG, is_filtered
from tests.simulation.world import World

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.frame import JSON
from reliable_mq.wire.pop_answer import batch_ack_body, handles_of
from reliable_mq.wire.pop_handle import PopHandle, stored_topic
from reliable_mq.wire.pop_headers import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    PopMessageHeader,
)
from reliable_mq.wire.record import iter_records

GROUPS = ("poppers", "poppers", "poppers-red", "poppers-in-order")
INVISIBLE_MS = (300, 1_200, 2_500, 6_000)
_POLLS_MS = (0, 0, 300, 2_000)
_TIMEOUT_MS = 1_000.0
_FORGOTTEN_MS = 6_000  # beyond its time a pop was forgotten


class _Held(NamedTuple):
    topic: str
    handle: PopHandle


class Popper:
    """One member of a group that shares messages."""

    def __init__(self, world: World, machine: Machine, number: int) -> None:
        self._world = world
        self._group = GROUPS[number % len(GROUPS)]
        self._is_in_order = self._group.endswith("in-order")
        self._number = number
        self._held: list[_Held] = []
        self._asked: list[_Held] = []  # of which a request is on its way
        self._pops = 0
        self._attempt = ""
        self._asked_in_vain = False
        self.caller = Caller(world, machine, (JSON,))  # the other form has no room for their codes
        self.caller.on_lost = self._lost
        self._links = 0
        world.later(world.around(world.plan.think_ms), self._act)

    def _lost(self) -> None:
        self._links += 1

    def _act(self) -> None:
        world, random = self._world, self._world.random
        if world.is_calm:
            return
        world.later(world.around(world.plan.think_ms), self._act)
        choice = random.random()
        free = [held for held in self._held if held not in self._asked]
        if not free or choice < 0.3:
            self._pop()
        elif choice < 0.6:
            self._acknowledge(free[0] if self._is_in_order else random.choice(free))
        elif choice < 0.75:
            self._acknowledge_many(free[: random.randint(1, 8)])
        elif choice < 0.9:
            self._extend(random.choice(free))
        else:
            self._held.remove(random.choice(free))  # a handler that fails

    def _ask(self, some: list[_Held], command: Command, heard: Heard) -> None:
        """Ask for something about messages; nothing else is asked about them meanwhile."""

        def free() -> None:
            self._asked = [held for held in self._asked if held not in some]

        def freed(reply: Command | None) -> None:
            free()
            heard(reply)

        self._asked += some
        self._world.later(_TIMEOUT_MS, free)  # then it may be asked again
        if not self.caller.ask(command, freed):
            free()

    def _pop(self) -> None:
        world, random = self._world, self._world.random
        topic = random.choice(list(world.plan.topics))
        poll_ms = random.choice(_POLLS_MS)
        if not self._asked_in_vain:  # else the same again: its answer was lost
            self._pops += 1
            self._attempt = f"{self._number}-{self._pops}"
        queues = world.plan.topics[topic]
        header = PopMessageHeader(
            consumer_group=self._group,
            topic=topic,
            queue_id=random.choice((-1, -1, -1, random.randrange(queues))),
            max_msg_nums=random.choice((1, 4, 32)),
            invisible_time=random.choice(INVISIBLE_MS),
            poll_time=poll_ms,
            init_mode=0,
            exp_type="TAG",
            exp=TAG if is_filtered(self._group) else "*",
            order=self._is_in_order,
            attempt_id=self._attempt if self._is_in_order else None,
        )
        command = request(RequestCode.POP_MESSAGE, header.to_ext())
        is_answered = []
        links = self._links

        def heard(reply: Command | None) -> None:
            is_answered.append(True)
            self._asked_in_vain = reply is None
            if reply is not None and not reply.code:
                self._got(topic, reply)

        def look() -> None:
            is_lost = self._links != links or world.plan.drop or world.plan.full_every_ms
            if not is_answered and not is_lost and not world.plan.set_clock_every_ms:
                raise Violation(f"a pop of {topic} by {self._group} is forgotten")

        if self.caller.ask(command, heard):
            world.later(poll_ms + _FORGOTTEN_MS, look)

    def _got(self, topic: str, reply: Command) -> None:
        records = list(iter_records(reply.body))
        handles = handles_of(reply.ext_fields, records, topic, BROKER)
        self._held += [_Held(topic, handle) for handle in handles]

    def _header(self, held: _Held) -> dict[str, object]:
        handle = held.handle
        return {
            "consumer_group": self._group,
            "topic": stored_topic(held.topic, self._group, handle.kind),
            "queue_id": handle.queue_id,
            "extra_info": handle.text(),
            "offset": handle.offset,
        }

    def _acknowledge(self, held: _Held) -> None:
        header = AckMessageHeader(**self._header(held))  # type: ignore[arg-type]
        command = request(RequestCode.ACK_MESSAGE, header.to_ext())
        self._ask([held], command, lambda reply: self._ended([held], reply))

    def _acknowledge_many(self, some: list[_Held]) -> None:
        acks = [(held.topic, held.handle) for held in some]
        body = batch_ack_body(self._group, BROKER, acks)
        command = request(RequestCode.BATCH_ACK_MESSAGE, {}, body)
        self._ask(some, command, lambda reply: self._ended(some, reply))

    def _ended(self, some: list[_Held], reply: Command | None) -> None:
        if reply is not None and not reply.code:
            self._held = [held for held in self._held if held not in some]

    def _extend(self, held: _Held) -> None:
        invisible_ms = self._world.random.choice(INVISIBLE_MS)
        header = ChangeInvisibleTimeHeader(**self._header(held), invisible_time=invisible_ms)  # type: ignore[arg-type]
        command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())

        def heard(reply: Command | None) -> None:
            if reply is not None and not reply.code and held in self._held:
                new = new_handle(held.handle, held.handle.offset or 0, reply)
                self._held[self._held.index(held)] = held._replace(handle=new)

        self._ask([held], command, heard)
