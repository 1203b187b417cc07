"""Apache's broker reads long tables that ours has grown in place, also after a torn write."""

from pathlib import Path

from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.probes.asking import body_of, group_config, topic
from tests.broker_core.raw_client import RawClient
from tests.with_java import INTEROP, started

from reliable_mq.runtime.table_files import LONG
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

MANY = 3_000
GROWN = [f"grown-{number}" for number in range(5)]
TOPICS, GROUPS = "topics.json", "subscriptionGroup.json"
TORN = 700  # bytes: the newest rows, and a part of an older one
QUEUES, TRIES = 3, 7  # not the usual ones

pytestmark = INTEROP


def make_many(client: RawClient) -> None:
    """Create so many topics and groups that their tables are long."""
    topics = [
        {"topicName": f"many-{number}", "readQueueNums": QUEUES, "writeQueueNums": QUEUES}
        for number in range(MANY)
    ]
    groups = [{"groupName": f"many-{number}", "retryMaxTimes": TRIES} for number in range(MANY)]
    for code, body in (
        (Ask.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics}),
        (Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": groups}),
    ):
        answer = client.ask(code, {}, body_of(body))
        assert answer.code == Code.SUCCESS, answer.remark


def make(client: RawClient, name: str) -> None:
    """Create a topic and a group."""
    header = topic(name, readQueueNums=QUEUES, writeQueueNums=QUEUES)
    assert client.ask(Ask.UPDATE_AND_CREATE_TOPIC, header).code == Code.SUCCESS
    body = group_config(name, retryMaxTimes=TRIES)
    answer = client.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer.code == Code.SUCCESS


def has(client: RawClient, name: str) -> tuple[bool, bool]:
    """Whether the broker has this topic, and this group, as they were made."""
    of_topic = client.ask(Ask.GET_TOPIC_CONFIG, {"topic": name})
    of_group = client.ask(Ask.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
    return (
        b'"readQueueNums":%d' % QUEUES in of_topic.body,
        b'"retryMaxTimes":%d' % TRIES in of_group.body,
    )


def grow(directory: Path) -> Path:
    """Let a broker of ours grow long tables in place, and die; return the folder of its tables."""
    config = directory / "store" / "config"
    broker = ReliableMQBroker(directory)
    with started(broker), RawClient(broker.address) as client:
        make_many(client)
        first, second, *others = GROWN
        make(client, first)
        make(client, second)
        inodes = {name: (config / name).stat().st_ino for name in (TOPICS, GROUPS)}
        for name in others:
            make(client, name)
    for name, inode in inodes.items():
        file = config / name
        assert file.stat().st_size > LONG
        assert file.stat().st_ino == inode, "the whole table was written: nothing is tested"
    return config


def apache(directory: Path) -> ApacheRocketMQ:
    return ApacheRocketMQ(directory, "SYNC_FLUSH", flags=SMALL_BROKER_FLAGS)


def test_apaches_broker_reads_what_was_written_behind_the_other_rows(tmp_path: Path) -> None:
    grow(tmp_path)
    with started(apache(tmp_path)) as broker, RawClient(broker.address) as client:
        for name in ("many-0", f"many-{MANY - 1}", *GROWN):
            assert has(client, name) == (True, True), name
        make(client, "of-apache")
    ours = ReliableMQBroker(tmp_path)
    with started(ours), RawClient(ours.address) as client:
        for name in ("many-0", f"many-{MANY - 1}", *GROWN, "of-apache"):
            assert has(client, name) == (True, True), name


def test_apaches_broker_takes_the_copy_of_a_table_whose_newest_sectors_are_lost(
    tmp_path: Path,
) -> None:
    """The copy lacks the newest row only: nobody was told yet that it is stored."""
    config = grow(tmp_path)
    for name in (TOPICS, GROUPS):
        text = (config / name).read_bytes()
        (config / name).write_bytes(text[:-TORN] + bytes(TORN))
    with started(apache(tmp_path)) as broker, RawClient(broker.address) as client:
        for name in ("many-0", f"many-{MANY - 1}", *GROWN[:-1]):
            assert has(client, name) == (True, True), name
