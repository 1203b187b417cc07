"""Rare events of a broker and a name server, each made by the code that writes it."""

import asyncio
import errno
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.delivery import client_calls
from reliable_mq.broker_core.delivery.timers import Timers
from reliable_mq.broker_core.filter.sql92 import compile_filter
from reliable_mq.broker_core.opening import save_now
from reliable_mq.broker_core.requests import filtered_pull
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.damage import STRETCHES_MAX
from reliable_mq.cli import broker, namesrv
from reliable_mq.errors import ConnectionLost, MessageRefused
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.runtime import broken, broker_server, registrar, server_connection, syncs
from reliable_mq.runtime.broker_chores import close_core
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_settings import TlsSettings
from reliable_mq.telemetry.outages import Outages
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.properties import encode_properties

FULL = OSError(errno.ENOSPC, "No space left on device")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


@pytest.fixture(autouse=True)
def every_line_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "reliable_mq")


def raises(error: Exception) -> Any:
    def raising(*_: object, **__: object) -> None:
        raise error

    return raising


def test_config_not_written(caplog: pytest.LogCaptureFixture) -> None:
    save_now(SimpleNamespace(write_text=raises(FULL)), "config/x.json", "{}")
    assert events(caplog) == ["config_not_written"]


def test_broker_not_saved(caplog: pytest.LogCaptureFixture) -> None:
    server: Any = broker_server.BrokerServer.__new__(broker_server.BrokerServer)
    server._core = SimpleNamespace(close=raises(FULL))
    close_core(server._core)
    assert events(caplog) == ["broker_not_saved"]


def test_client_callback_failed(caplog: pytest.LogCaptureFixture) -> None:
    client_calls._give_up(SimpleNamespace(answered=raises(ZeroDivisionError())))  # type: ignore[arg-type]
    assert events(caplog) == ["client_callback_failed"]


def test_timer_entry_missing(caplog: pytest.LogCaptureFixture) -> None:
    timers: Any = Timers.__new__(Timers)
    timers._files = SimpleNamespace(is_expired=lambda _position: False)
    timers._wait_for(7, None)
    assert events(caplog) == ["timer_entry_missing"]


def test_timed_message_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "reliable_mq.broker_core.delivery.timed_message"
    due = SimpleNamespace(properties=encode_properties({"UNIQ_KEY": "A" * 32, "KEYS": "o1"}))
    monkeypatch.setattr(f"{module}.message_when_due", lambda *_, **__: due)
    timers: Any = Timers.__new__(Timers)
    entry = SimpleNamespace(slot_ms=1, magic=0, size=5, taken_ms=0, commit_log_offset=9)
    timers._files = SimpleNamespace(entry=lambda _position: entry, is_done=lambda *_: False)
    record = SimpleNamespace(queue_offset=0)
    timers._read = lambda _entry: SimpleNamespace(
        own_keys=(), out_ms=1, due_ms=2, topic="t", record=record, place=9
    )
    timers._store = SimpleNamespace(append=raises(MessageRefused("too long")))
    timers._used_ms = 0
    timers._recalls = SimpleNamespace(takes_back=lambda *_, **__: False)
    timers.ended = SimpleNamespace(knows_any=False)
    timers.counts = SimpleNamespace(add=lambda *_: None)
    assert timers._deliver_one(0, 0) == 5
    assert events(caplog) == ["timed_message_dropped"]
    assert (caplog.records[0].__dict__["message_id"], caplog.records[0].__dict__["key"]) == (
        "A" * 32,
        "o1",
    )


def test_filter_failed(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_pull, "scan", raises(ZeroDivisionError()))
    pull: Any = SimpleNamespace(
        wanted=compile_filter("a > 1"),
        address="a:1",
        header=SimpleNamespace(topic="t", queue_id=0),
        judged=0,
    )
    queue = SimpleNamespace(first=0)
    state: Any = SimpleNamespace(store=SimpleNamespace(queue=lambda *_: queue))
    filtered_pull.judge_new(state, pull)
    assert events(caplog) == ["filter_failed"]


def test_log_damage_unlisted(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = CommitLog.__new__(CommitLog)
    log._firsts, log._segments, log._segment_size = [0], [None], 1 << 20
    noted = SimpleNamespace(end=20)
    log.damage = SimpleNamespace(note_damage=lambda *_: noted, stretches=[noted] * STRETCHES_MAX)
    log.log_damage(10, 20)
    assert events(caplog) == ["log_damaged", "log_damage_unlisted"]


def test_broker_broken(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("reliable_mq.runtime.broken.os._exit", ended.append)
    monkeypatch.setattr("reliable_mq.runtime.broken.logging.shutdown", lambda: None)
    broken.die(ZeroDivisionError("a bug"))
    assert ended == [1]
    assert events(caplog) == ["broker_broken"]
    assert caplog.records[0].exc_info is not None


def test_name_server_request_failed(caplog: pytest.LogCaptureFixture) -> None:
    core = NameServerCore()
    core._handlers[RequestCode.GET_TOPICS_BY_CLUSTER] = raises(RuntimeError("a bug"))
    answer = core.receive(1, request(RequestCode.GET_TOPICS_BY_CLUSTER, {}), 0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert events(caplog) == ["name_server_request_failed"]


def test_connection_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "is_last", lambda _number: True)
    extra: dict[str, Any] = {
        "peername": ("10.0.0.7", 5),
        "socket": SimpleNamespace(fileno=lambda: 3),
    }
    ended: list[bool] = []
    transport: Any = SimpleNamespace(get_extra_info=extra.get, abort=lambda: ended.append(True))
    kind = server_connection.ServerConnection
    kind.connection_made(kind.__new__(kind), transport)
    assert ended == [True]
    assert events(caplog) == ["connection_refused"]


class Refusing:
    """A name server that refuses, or that is away."""

    def __init__(self, answer: Command | Exception) -> None:
        self.answer = answer

    async def call(self, *_: object) -> Command:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def registrar_of(answer: Command | Exception) -> Any:
    made: Any = registrar.Registrar.__new__(registrar.Registrar)
    made._links, made._informed = Refusing(answer), set()
    made._outages = Outages()
    made.addresses, made._task, made._waiting = ["n:1"], None, []
    made._send = lambda _replies: None
    made._state = None
    return made


def test_registration_refused_and_failed_and_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar, "take_order_topics", lambda *_: None)
    ask = request(RequestCode.REGISTER_BROKER, {})

    async def scene() -> None:
        refusing = registrar_of(Command(code=ResponseCode.SYSTEM_ERROR, remark="no"))
        assert not await refusing._call("n:1", ask)
        away = registrar_of(ConnectionLost("gone"))
        for _ in range(3):
            assert not await away._call("n:1", ask)
        away._links.answer = Command(code=ResponseCode.SUCCESS)
        assert await away._call("n:1", ask)

    run_scene(scene())
    assert events(caplog) == ["registration_refused", "registration_failed", "registration_back"]


def test_unregistration_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrar, "unregistration", lambda _state: None)
    run_scene(registrar_of(ConnectionLost("gone")).unregister())
    assert events(caplog) == ["unregistration_failed"]


def test_log_synced_by_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncs, "KernelSync", raises(OSError(errno.ENOSYS, "no such call")))

    async def scene() -> None:
        assert syncs.kernel_syncs(broken.die) is None

    run_scene(scene())
    assert events(caplog) == ["log_synced_by_thread"]


def test_kernel_sync_refused(caplog: pytest.LogCaptureFixture) -> None:
    kernel: Any = SimpleNamespace(start=raises(OSError(errno.EINVAL, "not here")))
    file: Any = object()
    made = syncs.KernelSyncs(kernel, lambda _file: SimpleNamespace(number=3))  # type: ignore[arg-type,return-value]
    assert not made.start([file], lambda: None)
    assert events(caplog) == ["kernel_sync_refused"]


@pytest.mark.parametrize("server", ["broker", "name server"])
def test_server_stopped(
    server: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def life() -> None:
        running: asyncio.Future[Any]
        nowhere = ("127.0.0.1", 0)
        if server == "broker":
            options = broker_server.BrokerOptions(store=tmp_path, port=0, name_server_port=0)
            running = asyncio.ensure_future(broker._serve(options, nowhere))
        else:
            tls = ServerTls(TlsSettings())
            made = NameServer(tls=tls)
            running = asyncio.ensure_future(namesrv._serve(made, "127.0.0.1", 0, tls, nowhere))
        await eventually(lambda: "ready" in capsys.readouterr().out)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    asyncio.run(life())

    assert caplog.records[-1].getMessage().startswith(f"the {server} at 127.0.0.1:")
    assert events(caplog)[-1] == "server_stopped"
