"""Apache's Java client at a broker with quotas."""

from pathlib import Path

from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.java_shell import run_source
from tests.waiting import NEVER_BUSY
from tests.with_java import INTEROP

pytestmark = INTEROP

COUNT = 20


def said(folder: Path, **quotas: str) -> list[str]:
    """Return what the program says: it sends so many messages, and then consumes them."""
    (folder / "java").mkdir()
    with ReliableMQBroker(folder / "broker", settings={**NEVER_BUSY, **quotas}) as broker:
        words = (broker.name_server_address, "orders", COUNT, 100)
        return run_source("Encrypted", folder / "java", *words)


def test_a_group_with_a_quota_consumes_all(tmp_path: Path) -> None:
    assert said(tmp_path, quotasOfGroups="consumers:10:0") == ["sent 20", "consumed 20"]


def test_a_send_beyond_the_quota_of_a_topic_is_an_exception_of_the_client(tmp_path: Path) -> None:
    """The client tries three times at once, and gives up."""
    assert said(tmp_path, quotasOfTopics="orders:5:0") == ["failed: MQClientException"]
