"""A thread that sends again and again without others gets a connection of its own for it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.client.servers import RecordingPeer, Servers
from tests.client.test_asyncio_client import QUICK, SEND
from tests.forked_child import in_child
from tests.waiting import until

from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ForkedClient, UsageError
from reliable_mq.message import Message
from reliable_mq.runtime import direct_links
from reliable_mq.wire.command import Command

SETTINGS = ClientSettings(
    request_timeout_seconds=QUICK.request_timeout_seconds,
    connect_timeout_seconds=QUICK.connect_timeout_seconds,
    retries=1,
    backoff_seconds=0.001,
    heartbeat_v2=False,
)
WARM = Message(topic="t", body=b"warm")


def warm_up(client: Client) -> None:
    """Send alone until there is a direct link, and then on it."""

    def sent() -> bool:
        client.send(WARM)
        return client._engine.has_direct_links

    until(sent)
    client.send(WARM)


@contextmanager
def lone(servers: Servers) -> Iterator[Client]:
    with Client(servers.address, settings=SETTINGS) as client:
        warm_up(client)
        yield client


def sends(servers: Servers) -> list[int]:
    """How many messages came on each connection."""
    return [codes.count(SEND) for codes in servers.broker.asked]


def test_who_sends_now_and_then_has_one_connection() -> None:
    with Servers() as servers, Client(servers.address, settings=SETTINGS) as client:
        for _ in range(direct_links.ALONE_TIMES - 1):
            client.send(WARM)
        assert len(servers.broker.asked) == 1


def test_who_sends_again_and_again_sends_by_itself() -> None:
    with Servers() as servers, lone(servers) as client:
        loops, direct = sends(servers)
        for at in range(5):
            client.send(Message(topic="t", body=b"%d" % at))
        assert sends(servers) == [loops, direct + 5]
        assert servers.broker.bodies[-5:] == [b"0", b"1", b"2", b"3", b"4"]


def test_who_sends_with_others_shares_the_connection() -> None:
    with Servers() as servers, lone(servers) as client:
        loops, direct = sends(servers)
        servers.broker.silent.add(SEND)
        waiting = client.send_async(Message(topic="t", body=b"under way"), timeout=60.0)
        until(lambda: sends(servers)[0] == loops + 1)
        servers.broker.silent.clear()
        client.send(Message(topic="t", body=b"beside it"))
        assert sends(servers) == [loops + 2, direct]
        waiting.cancel()


def test_a_message_does_not_overtake_one_that_nobody_waits_for() -> None:
    with Servers() as servers, lone(servers) as client:
        loops, direct = sends(servers)
        client.send_oneway(Message(topic="t", body=b"first"))
        client.send(Message(topic="t", body=b"second"))
        assert sends(servers) == [loops + 2, direct], "behind it, on one connection"
        client.send(Message(topic="t", body=b"third"))
        assert sends(servers) == [loops + 2, direct + 1]


def test_a_connection_that_nobody_uses_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_links, "IDLE_SECONDS", 0.05)
    with Servers() as servers, lone(servers) as client:
        # Where this thread stood still as it warmed up, one has ended before, and been replaced.
        until(lambda: not any(servers.broker.is_open[1:]), lambda: servers.broker.is_open)
        assert len(servers.broker.is_open) > 1
        assert servers.broker.is_open[0]
        client.send(WARM)
        assert not client._engine.has_direct_links


def test_a_connection_that_the_broker_ends_is_not_missed() -> None:
    class Closing(RecordingPeer):
        def _answer(self, command: Command) -> Command | None:
            told = super()._answer(command)
            if command.body == b"go away" and self.bodies.count(b"go away") == 1:
                raise ConnectionResetError
            return told

    with Servers(Closing()) as servers, lone(servers) as client:
        loops = sends(servers)[0]
        result = client.send(Message(topic="t", body=b"go away"))
        assert result.tries == 2
        assert sends(servers)[0] == loops + 1
        for _ in range(2):
            assert client.send(WARM).tries == 1, "what has ended is not tried"


def test_closing_the_client_ends_both_connections() -> None:
    with Servers() as servers:
        with lone(servers) as client:
            pass
        until(lambda: not any(servers.broker.is_open))
        with pytest.raises(UsageError, match="closed"):
            client.send(WARM)


def test_many_threads_may_send_while_there_is_one() -> None:
    with Servers() as servers, lone(servers) as client, ThreadPoolExecutor(8) as pool:
        before = len(servers.broker.bodies)
        results = list(pool.map(lambda _: client.send(WARM), range(400)))
        assert len({result.message_id for result in results}) == 400
        assert len(servers.broker.bodies) == before + 400


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_it_to_its_parent() -> None:
    def child() -> None:
        with pytest.raises(ForkedClient):
            client.send(WARM)

    with Servers() as servers, lone(servers) as client:
        in_child(child)
        _, direct = sends(servers)
        client.send(WARM)
        assert sends(servers)[1:] == [direct + 1]
