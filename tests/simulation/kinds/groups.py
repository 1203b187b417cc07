"""Heartbeats, members and queue locks."""

from typing import Any, NamedTuple

from tests.simulation.asked import Asked
from tests.simulation.client import Memory
from tests.simulation.facts import Expected, Violation
from tests.simulation.kinds.offsets import Question
from tests.simulation.model import Model

from reliable_mq.broker_core.names import retry_topic
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

LOCK_LIFETIME_MS = 3_000
PRODUCERS = "producers"


class Heartbeat(Question):
    """A consumer says what it wants. Its group's retry topic is there from then on."""

    def make(self, memory: Memory) -> Command | None:
        topics = memory.random.sample(list(memory.plan.topics), k=1)
        consumer = {
            "groupName": memory.group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics],
        }
        beat = {
            "clientID": f"client-{memory.number}",
            "consumerDataSet": [consumer],
            "producerDataSet": [{"groupName": PRODUCERS}],
        }
        return request(RequestCode.HEART_BEAT, body=fastjson.dumps(beat))

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        beat = fastjson.loads(asked.command.body)
        for consumer in beat.get("consumerDataSet") or ():
            model.tables.groups.add(consumer["groupName"])
            model.tables.topics.setdefault(retry_topic(consumer["groupName"]), 1)
        model.tables.producers.add(asked.connection)
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if reply.code != ResponseCode.SUCCESS:
            raise Violation(f"a heartbeat is refused: {reply}")


class Anything(Question):
    """What our clients ask that is answered at once, whatever the answer."""

    def make(self, memory: Memory) -> Command | None:
        return request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": memory.group})

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        pass


class _Locked(NamedTuple):
    """What a request locks. `perhaps`: what may have expired before the clock was set back."""

    sure: set[tuple[str, int]]
    perhaps: dict[tuple[str, str, int], tuple[str, int, int | None]]


class Lock(Question):
    """A client wants queues for itself; nobody else gets them while it holds them."""

    def make(self, memory: Memory) -> Command | None:
        places = {memory.place() for _ in range(2)}
        body = {
            "clientId": f"client-{memory.number}",
            "consumerGroup": memory.group,
            "mqSet": [
                {"topic": topic, "brokerName": "broker", "queueId": queue_id}
                for topic, queue_id in sorted(places)
            ],
            "untilDisconnected": memory.random.random() < 0.3,
        }
        code = memory.random.choice(
            (RequestCode.LOCK_BATCH_MQ, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
        )
        return request(code, body=fastjson.dumps(body))

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        body: dict[str, Any] = fastjson.loads(asked.command.body)
        locks = model.tables.locks
        client = body["clientId"]
        asked.facts = _Locked(set(), {})
        for queue in body["mqSet"]:
            key = (body["consumerGroup"], queue["topic"], queue["queueId"])
            owner, expires_ms, _ = locks.get(key, (client, 0, None))
            if asked.command.code == RequestCode.UNLOCK_BATCH_MQ:
                if owner == client:
                    locks.pop(key, None)
                continue
            if queue["queueId"] >= model.tables.topics.get(queue["topic"], 0):
                continue  # a queue that is not there is locked for nobody
            bound = asked.connection if body.get("untilDisconnected") else None
            lock = (client, asked.now_ms + LOCK_LIFETIME_MS, bound)
            if owner == client or expires_ms <= asked.now_ms:
                locks[key] = lock
                model.tables.doubtful_locks.discard(key)
                asked.facts.sure.add(key[1:])
            elif key in model.tables.doubtful_locks:
                asked.facts.perhaps[key] = lock
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if asked.command.code == RequestCode.UNLOCK_BATCH_MQ:
            return
        queues = fastjson.loads(reply.body)["lockOKMQSet"]
        held = {(queue["topic"], queue["queueId"]) for queue in queues}
        sure, perhaps = asked.facts
        if not sure <= held or not held - sure <= {key[1:] for key in perhaps}:
            raise Violation(f"locks are given on {held}, not on {sure}")
        for key, lock in perhaps.items():
            if key[1:] in held:
                model.tables.locks[key] = lock
                model.tables.doubtful_locks.discard(key)
