"""What a broker keeps in memory of a topic with a message. `security.md` states the bound."""

import tracemalloc
from itertools import islice
from pathlib import Path

from bench.attack_requests import sends_to_new

from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.registration import registrations
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.wire.frame import FrameReader

TOPICS = 300
BYTES_OF_TOPIC = 4 * 1024
NOW_MS = 1_700_000_000_000


def _send_to(core: BrokerCore, frames: list[bytes]) -> None:
    """Have sends stored, shown, saved and counted."""
    peer = PeerConnection(1, b"\x0a\0\0\1\0\0\0\1", "10.0.0.1:1")
    for frame in FrameReader().feed(b"".join(frames)):
        core.receive(peer, core.decode(frame), NOW_MS)
    turn = core.take_turn(NOW_MS, NOW_MS)
    assert turn.batch is not None
    CommitLog.write_batch(turn.batch)
    if turn.files:
        core.saved(NOW_MS)
    core.stored(turn.batch.end, durable=True, now_ms=NOW_MS)
    while core.state.files.due:
        core.take_turn(NOW_MS, NOW_MS)
    core.state.collect_statistics(NOW_MS)
    core.state.statistics.sample(NOW_MS)


def _register(core: BrokerCore, names: NameServerCore) -> None:
    for command in registrations(core.state, core.state.take_unregistered()):
        names.receive(1, command, NOW_MS)


def test_a_topic_with_one_message_takes_little_memory(tmp_path: Path) -> None:
    config, _ = broker_config({"messageIndexEnable": "false"})
    disk = FileDisk(tmp_path)
    core, names = BrokerCore(config, disk), NameServerCore()
    core.open(NOW_MS)
    new = sends_to_new(0, 1)
    _send_to(core, list(islice(new, 8)))
    _register(core, names)
    tracemalloc.start()
    try:
        for _ in range(TOPICS // 30):
            _send_to(core, list(islice(new, 30)))
            _register(core, names)
        store = core.state.store
        while store.upkeep.unwritten:
            made = store.upkeep.begin_making(16)
            if made is not None:
                made.make()
                store.upkeep.end_making(made)
            store.upkeep.flush_some(16)
        store.checkpoint()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(store.queues) > TOPICS
    core.close(NOW_MS)
    disk.close()
    assert taken < TOPICS * BYTES_OF_TOPIC, taken
