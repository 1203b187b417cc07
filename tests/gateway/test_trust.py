"""What a proxy says when it starts, if the brokers behind it do not accept it."""

import asyncio
import logging

import pytest
from tests.gateway.fake_cluster import BROKER, NAMES, FakeCluster

from reliable_mq.access.users import User
from reliable_mq.errors import ConnectionLost
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.runtime.grpc_trust import TrustCheck
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

PROXY = User(username="proxy", password="proxy-secret-1")


def checked(cluster: FakeCluster, user: User | None = PROXY, *, needs_users: bool = False) -> bool:
    upstream = Upstream(cluster.ask, [NAMES])
    return asyncio.run(TrustCheck(upstream, user, needs_users=needs_users).run_once())


def refuses(cluster: FakeCluster, remark: str) -> None:
    cluster.answers[RequestCode.AUTH_GET_USER] = lambda asked: reply(
        asked, ResponseCode.NO_PERMISSION, remark
    )


@pytest.mark.parametrize(
    ("user", "remark", "who"),
    [
        (PROXY, "check signature failed.", "as user proxy (check signature failed)"),
        (PROXY, "User:proxy is not found.", "as user proxy (User:proxy is not found)"),
        (None, "username cannot be null.", "as somebody who does not sign (username cannot"),
    ],
)
def test_a_broker_that_refuses_the_proxy_is_told_in_one_line_with_the_remedy(
    user: User | None, remark: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster()
    refuses(cluster, remark)
    assert checked(cluster, user)
    (line,) = caplog.messages
    assert f"broker b at {BROKER} refuses this proxy {who}" in line
    assert "write a super user of the brokers into innerClientAuthenticationCredentials" in line
    assert caplog.records[0].levelno == logging.ERROR


def test_a_user_who_may_not_ask_for_users_is_told_only_where_clients_sign(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    refuses(cluster, "User:proxy has no permission to access Cluster:c from 127.0.0.1")
    assert checked(cluster, needs_users=False)
    assert not caplog.messages
    assert checked(cluster, needs_users=True)
    assert "write a super user" in caplog.text


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR])
def test_a_broker_that_accepts_it_or_has_no_users_is_no_line(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster()
    cluster.answers[RequestCode.AUTH_GET_USER] = lambda asked: reply(asked, code)
    assert checked(cluster)
    assert not caplog.messages


def test_a_cluster_that_is_away_is_asked_again_and_each_broker_once() -> None:
    cluster = FakeCluster()
    is_away = True
    ask = cluster.ask

    async def scene() -> None:
        nonlocal is_away

        async def asked(address: str, command: Command, timeout: float) -> Command:
            if is_away:
                raise ConnectionLost(f"{address} cannot be reached")
            return await ask(address, command, timeout)

        check = TrustCheck(Upstream(asked, [NAMES]), PROXY, needs_users=True)
        assert not await check.run_once()
        is_away = False
        assert await check.run_once()
        assert await check.run_once()

    asyncio.run(scene())
    assert cluster.counts[RequestCode.AUTH_GET_USER] == 1
