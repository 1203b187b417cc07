"""Clients by their ids: what the endpoint keeps of them, and how much at most."""

from typing import Any

import pytest

from reliable_mq.gateway import sessions
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
    found.drop("client")
    found.invariants()
    assert found.find("client") is None


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
    assert found.silent(sessions.SILENT_SECONDS + 1) == [session]
    assert found.silent(sessions.SILENT_SECONDS - 1) == []
