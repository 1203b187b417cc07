"""How many connections a server keeps: in all, and of one address."""

import asyncio
import logging
import socket
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.echo_server import Echo, connect, is_served, run, serving
from tests.waiting import eventually

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Message
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.connection_limits import Admission, ConnectionLimits, take_limits
from reliable_mq.runtime.host_names import connected_pair
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request


async def is_refused(echo: Echo) -> bool:
    reader, writer = await connect(echo)
    try:
        return not await is_served(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        return True
    finally:
        writer.close()


def limits(most: int, of_address: int) -> ConnectionLimits:
    return ConnectionLimits(connections=most, of_address=of_address)


@pytest.mark.parametrize(
    ("allowed", "word"),
    [(limits(3, 9), "maxConnections"), (limits(9, 3), "maxConnectionsOfAddress")],
)
def test_too_many_connections_are_refused_with_one_line_until_one_leaves(
    allowed: ConnectionLimits, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(limits=allowed) as echo:
            peers = [await connect(echo) for _ in range(3)]
            for peer in peers:
                assert await is_served(*peer)
            assert await is_refused(echo)
            assert echo.listener.refused.total() == 1
            for peer in peers:
                assert await is_served(*peer)
            peers[0][1].close()
            await eventually(lambda: len(echo.gone) == 1)
            assert not await is_refused(echo)

    caplog.set_level(logging.INFO, "reliable_mq.runtime")
    run(test)
    (record,) = caplog.records
    assert getattr(record, "event", "") == "connection_too_many"
    assert f"({word})" in record.getMessage()


def test_an_address_that_has_all_it_may_leaves_the_others_theirs() -> None:
    admission = Admission(limits(10, 5))
    assert [bool(admission.admit(n, "192.0.2.1")) for n in range(7)] == [False] * 5 + [True] * 2
    assert [bool(admission.admit(n, "192.0.2.2")) for n in range(7, 13)] == [False] * 5 + [True]


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    admission = Admission(limits(10, 2))
    assert not admission.admit(1, "2001:db8::1")
    assert not admission.admit(2, "2001:db8::ffff:2")
    assert admission.admit(3, "2001:db8:0:0:3::")
    assert not admission.admit(4, "2001:db8:0:1::1")


def of_rate(rate: int) -> Admission:
    return Admission(ConnectionLimits(new_of_address=rate))


def arrivals(admission: Admission, count: int, now: float, ip: str = "192.0.2.1") -> int:
    """Let an address connect so many times; return how many were let in."""
    return sum(not admission.arrive(ip, now) for _ in range(count))


def test_an_address_may_have_so_many_new_connections_in_a_second_and_ten_seconds_at_once() -> None:
    admission = of_rate(2)
    assert arrivals(admission, 25, 100.0) == 20
    assert arrivals(admission, 25, 102.5) == 5, "so many have come back"
    assert arrivals(admission, 25, 190.0) == 20, "no more than ten seconds are saved up"
    assert admission.refused == {"all": 0, "address": 0, "rate": 30}


def test_new_connections_of_an_address_leave_the_others_theirs() -> None:
    admission = of_rate(1)
    assert arrivals(admission, 15, 100.0) == 10
    assert arrivals(admission, 15, 100.0, "192.0.2.2") == 10
    assert arrivals(admission, 15, 100.0, "2001:db8::1") == 10
    assert arrivals(admission, 15, 100.0, "2001:db8::ffff:2") == 0, "the same network"


def test_a_rate_of_zero_is_no_limit() -> None:
    assert arrivals(of_rate(0), 100_000, 100.0) == 100_000


def test_of_addresses_without_end_the_quiet_ones_are_forgotten() -> None:
    admission = of_rate(1)
    assert arrivals(admission, 11, 100.0, "192.0.2.1") == 10
    for number in range(10_500):
        admission.arrive(f"10.{number // 65_536}.{number // 256 % 256}.{number % 256}", 100.0)
        assert arrivals(admission, 1, 100.0) == 0, "who comes again and again is not forgotten"
    assert len(admission._full_at) <= 10_000


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 50))))
def test_no_ten_seconds_have_more_new_connections_than_twenty_may(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    admission, now, let_in = of_rate(rate), 1_000.0, []
    for pause_ms, count in steps:
        now += pause_ms / 1000
        let_in += [now] * arrivals(admission, count, now)
    for begin in let_in:
        assert sum(begin <= at < begin + 10 for at in let_in) <= 20 * rate


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 2)), max_size=80))
def test_what_was_admitted_and_has_not_left_is_counted(
    steps: list[tuple[bool, int, int]],
) -> None:
    admission = Admission(limits(6, 3))
    inside: dict[int, str] = {}
    for comes, number, host in steps:
        ip = f"192.0.2.{host}"
        if comes and number not in inside:
            is_full = len(inside) >= 6 or list(inside.values()).count(ip) >= 3
            assert bool(admission.admit(number, ip)) == is_full
            if not is_full:
                inside[number] = ip
        elif not comes:
            admission.leave(number)
            inside.pop(number, None)


def test_a_server_in_this_process_is_reached_though_it_is_full() -> None:
    async def test() -> None:
        async with serving(limits=limits(1, 1)) as echo:
            first = await connect(echo)
            assert await is_served(*first)
            assert await is_refused(echo)
            own = await asyncio.open_connection(sock=await echo.listener.private_socket())
            assert await is_served(*own)
            first[1].close()
            await eventually(lambda: len(echo.gone) == 1)
            assert not await is_refused(echo), "it counts for nobody"

    run(test)


def test_a_stranger_who_is_faster_gets_no_private_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect_truly = socket.create_connection
    strangers: list[socket.socket] = []

    def late(address: tuple[str, int]) -> socket.socket:
        strangers.append(connect_truly(address))
        return connect_truly(address)

    with monkeypatch.context() as patch:
        patch.setattr("reliable_mq.runtime.host_names.socket.create_connection", late)
        with pytest.raises(ConnectionRefusedError, match="another process"):
            connected_pair()
    (stranger,) = strangers
    with stranger:
        assert stranger.recv(1) == b"", "it is closed"
    ours, theirs = connected_pair()
    with ours, theirs:
        assert theirs.getpeername() == ours.getsockname()


@pytest.mark.parametrize("value", ["0", "-1", "x", "1000001"])
def test_an_impossible_limit_is_an_error_that_names_it(value: str) -> None:
    with pytest.raises(ConfigurationError, match="maxConnections"):
        take_limits({"maxConnections": value})


def test_the_limits_of_a_running_broker_change(tmp_path: Path) -> None:
    """And its own name server has the same; the broker's own connection to it counts for nobody."""

    async def scene() -> None:
        options = BrokerOptions(
            store=tmp_path,
            port=0,
            name_server_port=0,
            properties={"maxConnections": "7"},
        )
        server = BrokerServer(options)
        await server.start()
        try:
            assert server._listener.limits.connections == 7
            async with AsyncClient(server.name_server_address) as client:
                await client.create_topic("t", 1)
                change = request(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxConnections=1")
                with BlockingLink(server.address, 30) as link:
                    assert (await asyncio.to_thread(link.call, change)).code == 0
                await eventually(lambda: server._listener.limits.connections == 1)
                assert server.name_server is not None
                assert server.name_server.limits.connections == 1
                await client.send(Message(topic="t", body=b"x"))
        finally:
            await server.close()

    uvloop.run(scene())
