"""Messages found by key and time, counters, and what tools ask to be cleaned."""

from tests.broker_core.probes.asking import GROUP, ONE, SEND_RESULT, TOPIC, Probe, sending

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.properties import encode_properties

_TOPIC = "sought"
_FOREVER = 2**62


def _query(key: str, **changes: object) -> dict[str, object]:
    return {
        "topic": _TOPIC,
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": _FOREVER,
        **changes,
    }


def _counter(name: str, key: str) -> dict[str, object]:
    return {"statsName": name, "statsKey": key}


def _keyed(number: int) -> dict[str, object]:
    properties = {"KEYS": f"k{number} even", "TAGS": "red", "UNIQ_KEY": f"{number:032X}"}
    return sending(topic=_TOPIC, properties=encode_properties(properties).decode())


FINDING = [
    *(
        Probe(f"a keyed message {number}", Ask.SEND_MESSAGE_V2, _keyed(number), b"k", SEND_RESULT)
        for number in range(3)
    ),
    Probe("a query by an unknown key", Ask.QUERY_MESSAGE, _query("nothing")),
    Probe("a query by key", Ask.QUERY_MESSAGE, _query("k1")),
    Probe("a query by unique key", Ask.QUERY_MESSAGE, _query("0" * 32, _UNIQUE_KEY_QUERY="true")),
    Probe("a query by tag", Ask.QUERY_MESSAGE, _query("red", indexType="T")),
    Probe("a query by tag as key", Ask.QUERY_MESSAGE, _query("red")),
    Probe("a query before all", Ask.QUERY_MESSAGE, _query("k1", endTimestamp=1)),
    Probe("a query after all", Ask.QUERY_MESSAGE, _query("k1", beginTimestamp=_FOREVER)),
    Probe("a query of nothing at most", Ask.QUERY_MESSAGE, _query("k1", maxNum=0)),
    Probe("a query of an unknown topic", Ask.QUERY_MESSAGE, _query("k1", topic="nowhere")),
    Probe(
        "a query without a number", Ask.QUERY_MESSAGE, _query("k1", maxNum=None), is_bug_there=True
    ),
    Probe("a view of no record", Ask.VIEW_MESSAGE_BY_ID, {"offset": 2**40}),
    *(
        Probe(
            f"the {boundary} boundary at {time}",
            Ask.SEARCH_OFFSET_BY_TIMESTAMP,
            {"topic": _TOPIC, "queueId": 0, "timestamp": time, "boundaryType": boundary},
            shows=ONE,
        )
        for boundary in ("lower", "upper")
        for time in (0, _FOREVER)
    ),
    Probe(
        "a counter that is not there",
        Ask.VIEW_BROKER_STATS_DATA,
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nowhere"},
    ),
    Probe(
        "a kind of counter that is not there",
        Ask.VIEW_BROKER_STATS_DATA,
        {"statsName": "NO_SUCH", "statsKey": _TOPIC},
    ),
    Probe(
        "a counter",
        Ask.VIEW_BROKER_STATS_DATA,
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": _TOPIC},
    ),
    *(
        Probe(f"the counter {name} of {key}", Ask.VIEW_BROKER_STATS_DATA, _counter(name, key))
        for name, key in (
            ("TOPIC_PUT_LATENCY", f"0@{TOPIC}"),
            ("TOPIC_PUT_LATENCY", TOPIC),
            ("GROUP_GET_LATENCY", f"0@{TOPIC}@{GROUP}"),
            ("GROUP_GET_LATENCY", f"{TOPIC}@{GROUP}"),
            ("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"),
            ("BROKER_PUT_NUMS", "DefaultCluster"),
            ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster"),
            ("GROUP_GET_FALL_SIZE", f"0@{TOPIC}@{GROUP}"),
            ("GROUP_GET_FALL_TIME", f"0@{TOPIC}@{GROUP}"),
            ("DLQ_PUT_NUMS", "DefaultCluster"),
        )
    ),
    Probe("old files deleted", Ask.DELETE_EXPIRED_COMMITLOG),
    Probe("old queues cleaned", Ask.CLEAN_EXPIRED_CONSUMEQUEUE),
    Probe("unused topics cleaned", Ask.CLEAN_UNUSED_TOPIC),
]
