"""Clients by their ids: what the endpoint keeps of them, and how much at most."""

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest
from tests.gateway.fake_cluster import Told

from reliable_mq.gateway import sessions
from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sessions import Sessions


def producing(*topics: str, **more: Any) -> Any:
    named = [{"name": each} for each in topics]
    return TYPES["Settings"](client_type=1, publishing={"topics": named}, **more)


def test_a_client_that_tells_again_counts_once() -> None:
    found = Sessions()
    for topic in ("a", "b" * 100, "c"):
        found.put("client", producing(topic), 0.0)
        found.invariants()
    assert len(found) == 1
    session = found.find("client")
    assert session is not None
    found.drop(session)
    found.invariants()
    assert found.find("client") is None


def test_if_nobody_signs_a_client_belongs_to_its_address() -> None:
    found = Sessions()

    def come(host: str) -> sessions.Session | None:
        ACTING.set(Acting(host))
        before = found.find("client")
        found.put("client", producing("a"), 0.0)
        return before

    assert copy_context().run(come, "10.0.0.1") is None
    assert copy_context().run(come, "10.0.0.2") is None
    assert copy_context().run(come, "10.0.0.1") is not None
    assert len(found) == 2
    found.invariants()


def test_clients_together_may_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SETTINGS_SIZES_MAX", 1_000)
    found = Sessions()
    with pytest.raises(RpcRefused) as caught:
        [found.put(f"client-{number}", producing("t" * 100), 0.0) for number in range(20)]
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    found.invariants()
    monkeypatch.setattr(sessions, "SESSIONS_MAX", len(found))
    with pytest.raises(RpcRefused):
        found.put("another", producing("t"), 0.0)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (TYPES["Settings"](client_type=1), Code.BAD_REQUEST),
        (producing(*map(str, range(1_001))), Code.BAD_REQUEST),
        (producing("t" * 70_000), Code.BAD_REQUEST),
        (producing("t", client_properties={"k": "v" * 5_000}), Code.INVALID_CLIENT_PROPERTIES),
        (
            producing("t", client_properties={str(n): "v" for n in range(33)}),
            Code.INVALID_CLIENT_PROPERTIES,
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: Any, code: Code) -> None:
    with pytest.raises(RpcRefused) as caught:
        Sessions().put("client", settings, 0.0)
    assert caught.value.code == code


def test_who_is_silent_and_not_connected_is_forgotten() -> None:
    found = Sessions()
    session = found.put("client", producing("t"), 0.0)
    connected = found.put("connected", producing("t"), 0.0)
    connected.stream = Told()
    assert found.silent(sessions.SILENT_SECONDS + 1) == [session]
    assert found.silent(sessions.SILENT_SECONDS - 1) == []
    connected.stream.close()
    assert found.silent(sessions.SILENT_SECONDS + 1) == [session, connected]


def done_as(acting: Acting, what: Callable[[], Any]) -> Any:
    """Do something for a client."""

    def run() -> Any:
        ACTING.set(acting)
        return what()

    return copy_context().run(run)


SHOP, MALLORY = Acting("10.0.0.1", "s", "shop"), Acting("10.0.0.2", "m", "mallory")


def test_a_client_id_belongs_to_its_user() -> None:
    found = Sessions()
    session = done_as(SHOP, lambda: found.put("c1", producing("orders"), 0.0))
    assert done_as(MALLORY, lambda: found.find("c1")) is None
    other = done_as(MALLORY, lambda: found.put("c1", producing("theirs"), 0.0))
    assert other is not session
    assert session.topics == {"orders"}
    found.drop(other)
    found.invariants()
    assert done_as(SHOP, lambda: found.find("c1")) is session
    moved = SHOP._replace(host="10.0.0.9")
    assert done_as(moved, lambda: found.find("c1")) is session


@pytest.mark.parametrize(
    ("one", "another"), [(SHOP, MALLORY), (Acting("10.0.0.1"), Acting("10.0.0.2"))]
)
def test_one_user_or_address_cannot_take_all_places(
    monkeypatch: pytest.MonkeyPatch, one: Acting, another: Acting
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_OF_ONE_MAX", 5)
    found = Sessions()
    for number in range(5):
        last = done_as(one, partial(found.put, f"client-{number}", producing("t"), 0.0))
    with pytest.raises(RpcRefused) as caught:
        done_as(one, lambda: found.put("more", producing("t"), 0.0))
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    done_as(another, lambda: found.put("other", producing("t"), 0.0))
    found.drop(last)
    done_as(one, lambda: found.put("more", producing("t"), 0.0))
    found.invariants()
    monkeypatch.setattr(sessions, "SETTINGS_SIZES_OF_ONE_MAX", 500)
    with pytest.raises(RpcRefused):
        done_as(one, lambda: found.put("more", producing("t" * 600), 0.0))
    done_as(another, lambda: found.put("other", producing("t" * 300), 0.0))
    found.invariants()
