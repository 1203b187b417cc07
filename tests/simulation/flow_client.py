"""Our own client in the simulated world: its flows, driven over a link that breaks.

Each producer sends one message after the other, as an application would, with the client's own
retries. What it is told must be so: a message with an ordering key is in the one queue of its key,
behind those that were sent before, at the place that the answer names.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from tests.simulation.client import Caller
from tests.simulation.facts import Violation
from tests.simulation.machine import Machine
from tests.simulation.model import Model
from tests.simulation.world import World

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.flow import Call, Flow, Instant, Now, Once, Step, Wait
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConnectionLost, ReliableMQError, RequestTimeout
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.wire.command import Command, reply

_NAME_SERVER = "names:9876"
_BROKER = "broker:10911"
_LOST_MS = 20.0  # until a client notices that nobody listens

Done = Callable[[Any, ReliableMQError | None], None]


class FlowRunner:
    """Drives flows over one client's link; the name server is always there."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world = world
        self._caller = Caller(world, machine)

    @property
    def caller(self) -> Caller:
        """The client's end of its link."""
        return self._caller

    def run(self, flow: Flow[Any], done: Done) -> None:
        """Run a flow; `done` gets what it returns, or what it raised."""
        self._go_on(flow, None, None, done)

    def _go_on(
        self, flow: Flow[Any], answer: Any, failure: ReliableMQError | None, done: Done
    ) -> None:
        try:
            while True:
                step = flow.throw(failure) if failure is not None else flow.send(answer)
                failure = None
                if not isinstance(step, Now):
                    break
                seconds = self._world.time_ms / 1000
                answer = Instant(seconds, self._world.now_ms, seconds)
        except StopIteration as end:
            done(end.value, None)
        except ReliableMQError as error:
            done(None, error)
        else:
            self._begin(step, lambda got, error: self._go_on(flow, got, error, done))

    def _begin(self, step: Step, done: Done) -> None:
        world = self._world
        if isinstance(step, Wait):
            world.later(step.seconds * 1000, lambda: done(None, None))
        elif isinstance(step, Once):
            self.run(step.flow(), done)
        elif isinstance(step, Call) and step.address == _NAME_SERVER:
            answer = self._route(step.command)
            world.later(world.around(world.plan.latency_ms), lambda: done(answer, None))
        elif isinstance(step, Call):
            self._call(step, done)
        else:
            raise AssertionError(f"no producer takes this step: {step}")

    def _route(self, command: Command) -> Command:
        count = self._world.plan.topics[command.ext_fields["topic"]]
        broker = {"brokerName": "broker", "cluster": "c", "brokerAddrs": {"0": _BROKER}}
        queues = {"brokerName": "broker", "perm": 6, "topicSysFlag": 0}
        queues |= {"readQueueNums": count, "writeQueueNums": count}
        body = {"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]}
        return reply(command, body=msgspec.json.encode(body))

    def _call(self, step: Call, done: Done) -> None:
        is_over = False

        def over(answer: Command | None, error: ReliableMQError | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                done(answer, error)

        def heard(answer: Command | None) -> None:
            over(answer, None if answer else ConnectionLost("the link broke"))

        if not self._caller.ask(msgspec.structs.replace(step.command), heard):
            self._world.later(_LOST_MS, lambda: heard(None))
            return
        late = RequestTimeout("no answer in time")
        self._world.later(step.timeout * 1000, lambda: over(None, late))


class FlowProducer:
    """An application that sends, one message after the other."""

    def __init__(self, world: World, machine: Machine, model: Model, number: int) -> None:
        self._world = world
        self._model = model
        self._number = number
        self._runner = FlowRunner(world, machine)
        settings = ClientSettings(request_timeout_seconds=0.5)
        routes = RouteCache(NameServers((_NAME_SERVER,), 0.5), settings.new_topic_queues, 30.0)
        self._producer = SendFlows(settings, routes, world.random.randbytes)
        self._count = 0
        self._last: dict[tuple[str, str], tuple[MessageQueue, int]] = {}  # by topic and key
        self.acknowledged: list[tuple[SendResult, bytes]] = []
        self._send_later()

    @property
    def caller(self) -> Caller:
        """The client's end of its link."""
        return self._runner.caller

    def _send_later(self) -> None:
        self._world.later(self._world.around(self._world.plan.think_ms), self._send)

    def _send(self) -> None:
        if self._world.is_calm:
            return
        random = self._world.random
        self._count += 1
        message = Message(
            topic=random.choice(list(self._world.plan.topics)),
            body=b"f%d:%d|" % (self._number, self._count),
            ordering_key=random.choice(("", f"key-{self._number}-1", f"key-{self._number}-2")),
        )
        flow = self._producer.send(message, timeout=2.0)
        self._runner.run(flow, lambda result, error: self._sent(message, result, error))

    def _sent(
        self, message: Message, result: SendResult | None, error: ReliableMQError | None
    ) -> None:
        self._send_later()
        if result is None:
            self._world.note("producer", self._number, "gives up", message.body, error)
            return
        if not self._world.plan.is_sync_flush:
            return  # what a power loss takes may have been acknowledged
        self.acknowledged.append((result, message.body))
        if message.ordering_key:
            key = (message.topic, message.ordering_key)
            queue, offset = self._last.get(key, (result.queue, -1))
            if queue != result.queue or result.queue_offset <= offset:
                raise Violation(f"{key} went to {queue} at {offset}, then {result}")
            self._last[key] = (result.queue, result.queue_offset)

    def everything_is_where_it_was_said_to_be(self) -> None:
        """Check every acknowledgement against the queues."""
        for result, body in self.acknowledged:
            queue = self._model.queues[result.queue.topic, result.queue.queue_id]
            if queue.entries[result.queue_offset].body != body:
                raise Violation(f"{body!r} is not where {result} says")
