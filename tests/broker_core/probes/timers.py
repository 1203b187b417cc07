"""Timed messages: times that can be kept and times that cannot, and recalls that are forbidden."""

from tests.broker_core.probes.asking import BATCH, ONE, SEND_RESULT, TOPIC, Probe, sending

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.properties import encode_properties

QUEUE = {"topic": "rmq_sys_wheel_timer", "queueId": 0}


def timed(**properties: object) -> str:
    """Return a message's properties as a send carries them."""
    texts = {name: str(value) for name, value in properties.items()}
    return encode_properties({"UNIQ_KEY": "D" * 32, **texts}).decode()


def taken(name: str, header: dict[str, object], **properties: object) -> Probe:
    ext = sending(**header, properties=timed(**properties))
    return Probe(name, Ask.SEND_MESSAGE_V2, ext, b"timed", SEND_RESULT)


def refused(name: str, **properties: object) -> Probe:
    return Probe(name, Ask.SEND_MESSAGE_V2, sending(properties=timed(**properties)), b"timed")


TIMERS = [
    taken("a timed message", {}, TIMER_DELAY_MS=3_600_000),
    taken("a timed message in seconds", {"queue_id": 1}, TIMER_DELAY_SEC=3_600),
    taken("a time that has passed", {"topic": "timed"}, TIMER_DELIVER_MS=1),
    taken("a delay of nothing", {"topic": "timed"}, TIMER_DELAY_MS=0),
    taken("a delay with a sign", {}, TIMER_DELAY_MS="+3600000"),
    refused("a time too far", TIMER_DELAY_SEC=3 * 86_400 + 60),
    refused("a time that no long holds", TIMER_DELIVER_MS=2**63),
    refused("a time that is no number", TIMER_DELAY_MS="soon"),
    refused("a time with a blank", TIMER_DELAY_MS=" 5"),
    refused("two times, the first too far", TIMER_DELAY_SEC=10**9, TIMER_DELIVER_MS=1),
    refused("a recall of the past", TIMER_DELIVER_MS=1, TIMER_DEL_UNIQKEY="x"),
    taken("a time that was kept already", {"topic": "timed"}, TIMER_DELAY_MS=9, TIMER_OUT_MS=1),
    Probe(
        "a level and a time",
        Ask.SEND_MESSAGE_V2,
        sending(topic="timed", properties=timed(TIMER_DELAY_SEC=10**9, DELAY=18)),
        b"late",
        SEND_RESULT[:1],
    ),
    taken("a timed retry", {"topic": "%RETRY%newgroup"}, TIMER_DELAY_SEC=3_600),
    Probe("how many wait", Ask.GET_MAX_OFFSET, QUEUE, shows=ONE),
    Probe("a recall", Ask.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": "x"}),
    Probe("a recall without a handle", Ask.RECALL_MESSAGE, {"topic": TOPIC}),
    Probe(
        "a batch with a time",
        Ask.SEND_BATCH_MESSAGE,
        sending(batch="true", topic="timed", properties=timed(TIMER_DELAY_SEC=3_600)),
        BATCH,
        SEND_RESULT,
        differs="Apache puts its messages into the wheel without a time, where its timers stop",
    ),
    Probe(
        "a send to the wheel itself",
        Ask.SEND_MESSAGE_V2,
        sending(topic="rmq_sys_wheel_timer"),
        b"x",
        differs="Apache takes it, and stores it later wherever it says that it belongs",
    ),
]
