"""The header with a call's signature: what it may be, before anybody has signed."""

import asyncio
import base64
import time
from typing import Any

import pytest
from tests.gateway.fake_cluster import NAMES, FakeCluster
from tests.gateway.test_endpoint_security import signed
from tests.waiting import eventually

from reliable_mq.access.users import User
from reliable_mq.gateway.asyncio_gateway import Gateway
from reliable_mq.gateway.caller import Caller, kept_headers
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.http2_frames import Stream
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime import grpc_users
from reliable_mq.runtime.grpc_calls import Calls

SHOP = User(username="shop", password="shop-secret-1")


async def find(name: str) -> User | None:
    return SHOP if name == "shop" else None


def signer(scope: str, secret: str = SHOP.password) -> User:
    """Return who has signed a call whose credential has a scope behind the name."""
    headers = {name.encode(): value.encode() for name, value in signed("shop", secret).items()}
    old = headers[b"authorization"]
    headers[b"authorization"] = old.replace(b"=shop", b"=shop" + scope.encode())
    caller = Caller("client-1", "10.0.0.1", headers, float("inf"))
    return asyncio.run(grpc_users.signer_of(caller, find))


@pytest.mark.parametrize("scope", ["", "/", "/region/service", "/" + "x" * 800])
def test_a_scope_behind_the_name_means_nothing(scope: str) -> None:
    assert signer(scope) is SHOP


ODD_NAMES = ("a:b", "*", "User:x", '"quoted"', "back\\slash", "%RETRY%x", "${jndi}", "x" * 255)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_user_with_an_odd_name_signs_like_others(name: str) -> None:
    odd = User(username=name, password=SHOP.password)
    headers = {key.encode(): each.encode() for key, each in signed(name, odd.password).items()}

    async def find_odd(claimed: str) -> User | None:
        return odd if claimed == name else None

    caller = Caller("client-1", "10.0.0.1", headers, float("inf"))
    assert asyncio.run(grpc_users.signer_of(caller, find_odd)) is odd


@pytest.mark.parametrize("name", ["a,b", "with space", ""])
def test_a_name_that_no_header_can_have_is_refused_with_a_reason(name: str) -> None:
    headers = {key.encode(): each.encode() for key, each in signed(name, SHOP.password).items()}
    caller = Caller("client-1", "10.0.0.1", headers, float("inf"))
    with pytest.raises(RpcRefused, match="the call is not signed") as caught:
        asyncio.run(grpc_users.signer_of(caller, find))
    assert caught.value.code == Code.UNAUTHORIZED


def _forgeries() -> list[dict[str, str]]:
    """Return headers that were made of right ones by somebody who does not know the secret."""
    right = signed("shop", SHOP.password)
    said, before = right["authorization"], right["x-mq-date-time"]
    head, _, signature = said.rpartition("=")
    digits = [
        f"{head}={signature[:at]}{'0' if signature[at] != '0' else '1'}{signature[at + 1 :]}"
        for at in range(len(signature))
    ]
    raw = base64.b64encode(bytes.fromhex(signature)).decode()
    changed = [
        *digits,
        said.replace("=shop", "=root"),
        said.replace("=shop", "=Shop"),
        said.replace("SignedHeaders=x-mq-date-time", "SignedHeaders=x-mq-language"),
        said.replace("SignedHeaders=x-mq-date-time", "SignedHeaders=x-mq-date-time;host"),
        said.replace("SignedHeaders=x-mq-date-time, ", ""),
        said.replace("MQv2-HMAC-SHA1", "MQv2-HMAC-MD5"),
        *(f"{head}={text}" for text in ("", raw, signature[:-1], f"{signature}0", "0" * 40)),
        f"{said}, Signature={'0' * 40}",
        f"Credential=root, {said}",
    ]
    times = ["", f"{before} ", f" {before}", before.lower(), f"{before}\0", before[:-1]]
    return [
        *({**right, "authorization": each} for each in changed),
        *({**right, "x-mq-date-time": each} for each in times),
        {"authorization": said},
        {"x-mq-date-time": before},
    ]


@pytest.mark.parametrize("headers", _forgeries())
def test_a_call_with_a_forged_header_is_refused(headers: dict[str, str]) -> None:
    given = {key.encode(): each.encode() for key, each in headers.items()}
    root = User(username="root", password="another-secret")

    async def find_both(name: str) -> User | None:
        return {"shop": SHOP, "root": root}.get(name)

    with pytest.raises(RpcRefused) as caught:
        asyncio.run(grpc_users.signer_of(Caller("c", "10.0.0.1", given, 1.0), find_both))
    assert caught.value.code == Code.UNAUTHORIZED


def test_signatures_of_calls_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def noted(made: str, given: str) -> bool:
        compared.append(given)
        return made == given

    monkeypatch.setattr("reliable_mq.runtime.grpc_users.hmac.compare_digest", noted)
    assert signer("") is SHOP
    with pytest.raises(RpcRefused, match="check signature failed"):
        signer("", "guessed")
    assert len(compared) == 2


def test_a_long_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(RpcRefused, match="at most 1024 bytes") as caught:
        signer("/" + "x" * 1_000)
    assert caught.value.code == Code.UNAUTHORIZED


@pytest.mark.parametrize("text", ["a" * 50_000, " " * 50_000, "a/" * 25_000, "a," * 25_000])
def test_no_header_takes_time_that_grows_with_its_square(text: str) -> None:
    begun = time.thread_time()
    assert grpc_users.SIGNED.fullmatch(f"MQv2-HMAC-SHA1 Credential={text}") is None
    assert time.thread_time() - begun < 0.5


def test_only_headers_that_are_needed_are_kept_of_a_call() -> None:
    given = {b"authorization": b"a" * 30_000, b"x-other": b"b" * 30_000, b"x-mq-date-time": b"now"}
    kept = kept_headers(given)
    assert set(kept) == {b"authorization", b"x-mq-date-time"}
    assert sum(map(len, kept.values())) < 2_000
    with pytest.raises(RpcRefused, match="at most 1024 bytes"):
        asyncio.run(grpc_users.signer_of(Caller("c", "h", kept, 1.0), find))


def test_a_refused_signature_is_counted_and_a_right_one_is_not() -> None:
    """The broker of the process counts it with the requests that its guard refuses."""
    refused: list[str] = []

    class Taken:
        def respond(self, _stream: Any, response: Any) -> None:
            answers.append(response.status.code)

    async def authenticate(caller: Caller) -> User:
        return await grpc_users.signer_of(caller, find)

    async def run() -> None:
        gateway = Gateway(FakeCluster().ask, [NAMES], "test")
        calls = Calls(gateway, authenticate, lambda: refused.append("once"))
        for secret in ("guessed", SHOP.password):
            made = {name.encode(): each.encode() for name, each in signed("shop", secret).items()}
            caller = Caller("client-1", "10.0.0.1", made, float("inf"))
            call = TYPES["HeartbeatRequest"]()
            taken: Any = Taken()
            calls.answer(taken, Stream(1, 0), "Heartbeat", caller, call, None)
        await eventually(lambda: len(answers) == 2)

    answers: list[int] = []
    asyncio.run(run())
    assert sorted(answers) == [Code.UNRECOGNIZED_CLIENT_TYPE, Code.UNAUTHORIZED]
    assert refused == ["once"]
