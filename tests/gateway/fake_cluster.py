"""A cluster of one broker that answers as a test says; and a client's stream. Both keep all."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import Record
from reliable_mq.wire.record_encode import encode_record

NAMES, BROKER = "names:9876", "broker:10911"
Answer = Callable[[Command], Command]


def record_of(body: bytes, offset: int, **properties: str) -> bytes:
    """Return a stored record of the topic `orders`."""
    record = Record(
        topic="orders",
        body=body,
        properties=encode_properties({"UNIQ_KEY": f"ID{offset}", **properties}),
        queue_id=0,
        queue_offset=offset,
        commit_log_offset=1000 + offset,
        born_time_ms=1,
        store_time_ms=2,
    )
    return encode_record(record)


class FakeCluster:
    """What the gateway asks."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.actings: list[Acting | None] = []
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.answers: dict[int, Answer] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
        }

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        """Answer, as `Ask`."""
        assert timeout > 0
        assert address in {NAMES, BROKER}
        if address == BROKER and command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return reply(command, 3, "not supported")  # the question whether the caller may see it
        self.asked.append(command)
        self.actings.append(ACTING.get())
        self.counts[command.code] += 1
        answer = self.answers.get(command.code)
        return answer(command) if answer is not None else reply(command)

    def of(self, code: int) -> list[dict[str, str]]:
        """Return the fields of all requests with this code."""
        return [each.ext_fields for each in self.asked if each.code == code]

    @staticmethod
    def _route(command: Command) -> Command:
        if command.ext_fields["topic"] != "orders":
            return reply(command, 17, "No topic route info in name server")
        body = (
            b'{"brokerDatas":[{"brokerName":"b","cluster":"c","brokerAddrs":{"0":"broker:10911"}}],'
            b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":2,"writeQueueNums":2}]}'
        )
        return reply(command, body=body)

    @staticmethod
    def _cluster(command: Command) -> Command:
        body = (
            b'{"brokerAddrTable":{"b":{"brokerName":"b","cluster":"c","brokerAddrs":'
            b'{0:"broker:10911"}}},"clusterAddrTable":{"c":["b"]}}'
        )
        return reply(command, body=body)

    def pops(self, *bodies: bytes, invisible_ms: int = 15_000, count: str = "") -> None:
        """Answer pops with these messages."""

        def answer(command: Command) -> Command:
            now = str(time.time_ns() // 1_000_000)
            ext = {"popTime": now, "invisibleTime": str(invisible_ms), "reviveQid": "3"}
            ext |= {"restNum": "0", "startOffsetInfo": "0 0 7", "msgOffsetInfo": "0 0 7"}
            if count:
                ext["orderCountInfo"] = count
            return reply(command, ext=ext, body=b"".join(bodies))

        self.answers[RequestCode.POP_MESSAGE] = answer

    def changes(self, popped_at: str = "5") -> None:
        """Answer changes of the invisible time."""

        def answer(command: Command) -> Command:
            ext = {"popTime": popped_at, "reviveQid": "4"}
            ext["invisibleTime"] = command.ext_fields["invisibleTime"]
            return reply(command, ext=ext)

        self.answers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = answer


class Told:
    """A Telemetry stream that keeps what it is told."""

    def __init__(self) -> None:
        self.is_open, self.commands = True, list[Any]()

    def write(self, message: Any) -> None:
        self.commands.append(message)

    def close(self) -> None:
        self.is_open = False
