"""A producer of half messages, and what a broker did with them."""

from tests.broker_core.broker_world import TOPIC, BrokerWorld, send_header

from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0
PRODUCERS = "order_producers"
INTERVAL_MS = 30_000


def half_header(**properties: str) -> dict[str, object]:
    named = {"TRAN_MSG": "true", "PGROUP": PRODUCERS, "UNIQ_KEY": "AB12", "TAGS": "paid"}
    header = send_header(TOPIC, 3, **{**named, **properties})
    return {**header, "a": PRODUCERS, "f": TRANSACTION_PREPARED, "g": header["g"], "h": 7}


def prepare(world: BrokerWorld, body: bytes = b"half", **properties: str) -> Command:
    """Send a half; its born time is now."""
    header = {**half_header(**properties), "g": world.now_ms}
    answer = world.ask(RequestCode.SEND_MESSAGE_V2, header, body)
    assert answer.code == 0, answer.remark
    return answer


def ending(sent: Command, decision: int, **changes: object) -> dict[str, object]:
    """Return the header with which the producer of a half ends its transaction."""
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": sent.ext_fields["queueOffset"],
        "commitLogOffset": decode_offset_message_id(sent.ext_fields["msgId"]).commit_log_offset,
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
        "msgId": "AB12",
        **changes,
    }


def answering(question: Command, decision: int) -> dict[str, object]:
    """Return the header with which a producer answers a check-back."""
    ext = question.ext_fields
    return {
        "producerGroup": PRODUCERS,
        "tranStateTableOffset": ext["tranStateTableOffset"],
        "commitLogOffset": ext["commitLogOffset"],
        "commitOrRollback": decision,
        "fromTransactionCheck": "true",
        "msgId": ext["msgId"],
    }


def end(world: BrokerWorld, header: dict[str, object]) -> Command:
    return world.ask(RequestCode.END_TRANSACTION, header)


def produce(world: BrokerWorld, of: int = 1, group: str = PRODUCERS) -> None:
    """Let a connection register as a producer."""
    beat = {"clientID": f"client-{of}", "producerDataSet": [{"groupName": group}]}
    assert world.ask(RequestCode.HEART_BEAT, {}, fastjson.dumps(beat), of=of).code == 0


def questions(world: BrokerWorld, of: int = 1) -> list[Command]:
    return [
        notice for notice in world.notices(of) if notice.code == RequestCode.CHECK_TRANSACTION_STATE
    ]


def bodies(world: BrokerWorld, topic: str = TOPIC, queue_id: int = 3) -> list[bytes]:
    return [record.body for record in world.records(topic, queue_id)]


def settled(world: BrokerWorld) -> list[bytes]:
    return bodies(world, OP_TOPIC, 0)


def offsets(world: BrokerWorld) -> tuple[int | None, int | None]:
    table = world.state.offsets
    half, op = (table.get(TRANSACTION_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))
    return half, op


def restarted(world: BrokerWorld, **properties: str) -> BrokerWorld:
    """Open what a broker left that was killed: nothing was closed."""
    return BrokerWorld(world.disk, **{**world.properties, **properties})
