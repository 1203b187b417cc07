"""Members of both kinds share one group, so our shares must be those of Apache's client itself."""

import random
from pathlib import Path

from tests.interop.java_shell import run_source
from tests.with_java import INTEROP

from reliable_mq.client.consuming.allocation import (
    Allocation,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    allocate,
    average,
    circle,
)
from reliable_mq.message import MessageQueue

CASES = 300

pytestmark = INTEROP

OURS: dict[str, Allocation] = {
    "average": average,
    "circle": circle,
    "room": MachineRoom(frozenset({"r1", "r2"})),
    "nearby": MachineRoomNearby(lambda broker: broker[:2], lambda member: "r" + member[-1]),
    "hash": ConsistentHash(),
}


def test_every_share_is_the_one_of_apaches_client(tmp_path: Path) -> None:
    chance = random.Random(7)
    brokers = ["r1@a", "r1@b", "r2@a", "r3@a", "r3@a@", "r1@b@c", "r2"]
    lines: list[str] = []
    expected: list[str] = []
    for _ in range(CASES):
        name = chance.choice(list(OURS))
        queues = sorted(
            MessageQueue("t", broker, at)
            for broker in chance.sample(brokers, chance.randint(1, len(brokers)))
            for at in range(chance.randint(1, 12))
        )
        members = sorted(
            {f"10.0.0.{chance.randint(1, 40)}@{chance.randint(1, 9)}#{at % 4}" for at in range(9)}
        )[: chance.randint(1, 9)]
        me = chance.choice(members)
        texts = [f"{queue.broker_name}:{queue.queue_id}" for queue in queues]
        lines.append("\t".join((name, me, ",".join(texts), ",".join(members))))
        share = allocate(OURS[name], me, queues, members)
        expected.append(",".join(f"{queue.broker_name}:{queue.queue_id}" for queue in share))
    cases = tmp_path / "cases"
    cases.write_text("\n".join(lines))
    printed = run_source("Allocation", tmp_path, cases)
    for line, theirs, ours in zip(lines, printed, expected, strict=True):
        assert ours == theirs, line
