"""A certificate is replaced without a restart, and no connection is dropped for it."""

import asyncio
import logging
import shutil
import ssl
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from tests.runtime.echo_server import Echo, is_served, run, serving
from tests.runtime.tls_world import HOST, Certificates, connect_encrypted
from tests.waiting import eventually

from reliable_mq.runtime import server_tls
from reliable_mq.runtime.fresh_context import FreshContext, context_of_client
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_contexts import client_context
from reliable_mq.runtime.tls_settings import take_tls


def _has_other(tls: ServerTls, context: ssl.SSLContext | None) -> bool:
    return tls.context is not context


async def serial_of(echo: Echo, made: Certificates) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    _, writer = await connect_encrypted(echo, made.client())
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return str(found)


def test_new_connections_get_a_new_certificate_and_the_old_ones_go_on(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tls, "WATCH_SECONDS", 0.01)

    async def test() -> None:
        with made.server() as tls:
            tls.watch()
            async with serving(tls=tls) as echo:
                old = await connect_encrypted(echo, made.client())
                serial = await serial_of(echo, made)
                for _ in range(3):
                    before, last = serial, tls.context
                    made.issue("server")
                    await eventually(partial(_has_other, tls, last))
                    serial = await serial_of(echo, made)
                    assert serial != before
                    assert await is_served(*old)
                assert echo.connections[0].id in echo.listener.connections

    run(test)


def looked_twice(tls: ServerTls) -> bool:
    """Whether the files were read again; files that have just changed are left for a look."""
    return tls.look_once() or tls.look_once()


def test_a_certificate_and_its_key_may_be_replaced_one_after_the_other(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = made.pair("server")
    new_cert, new_key = made.pair("new")
    tls = ServerTls(made.settings(server_certPath=cert, server_keyPath=key))
    before = tls.context
    assert not looked_twice(tls)
    shutil.copy(new_cert, cert)
    assert not tls.look_once(), "the key follows in a moment"
    shutil.copy(new_key, key)
    assert looked_twice(tls)
    assert tls.context is not before
    assert "is not used" not in caplog.text


@pytest.mark.parametrize("kind", ["gone", "half", "another key", "expired"])
def test_files_that_cannot_be_used_are_told_once_and_the_certificate_goes_on(
    made: Certificates, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.runtime")
    path = Path(made.issue("server"))
    good = path.read_bytes()
    tls = ServerTls(made.settings(server_certPath=str(path)))
    before, expires_at = tls.context, tls.expires_at
    contents = {
        "half": good[: len(good) // 2],
        "another key": good[: good.index(b"-----BEGIN CERT")] + Path(made.ca).read_bytes(),
    }
    if kind == "gone":
        path.unlink()
    elif kind == "expired":
        made.expired("server")
    else:
        path.write_bytes(contents[kind])
    for _ in range(5):
        assert not tls.look_once()
    assert (tls.context, tls.expires_at) == (before, expires_at)
    (record,) = caplog.records
    assert getattr(record, "event", "") == "tls_not_reloaded"
    made.issue("server")
    assert looked_twice(tls)
    assert tls.context is not before


def test_a_certificate_that_expires_while_it_is_used_is_told_loudly_and_once(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections go on: whether to trust it is for each client to say."""
    now = time.time()
    tls = ServerTls(made.settings(), clock=lambda: now)

    def told() -> list[logging.LogRecord]:
        wanted = "tls_certificate_doubtful"
        return [each for each in caplog.records if getattr(each, "event", "") == wanted]

    tls.note_end()
    assert not told()
    now = tls.expires_at + 1
    tls.note_end()
    tls.note_end()
    (line,) = told()
    assert line.levelno == logging.ERROR
    assert "certificate has expired" in line.getMessage()
    assert tls.context is not None


def test_a_certificate_whose_time_has_not_come_is_used_when_it_has(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock of whoever made it may be ahead of this one."""
    tls = ServerTls(made.settings())
    before = tls.context
    made.issue("server", not_before=datetime.now(UTC) + timedelta(seconds=4))
    for _ in range(3):
        assert not tls.look_once()
    assert len(caplog.records) == 1, "told once"
    run(lambda: eventually(tls.look_once))
    assert tls.context is not before


def test_a_new_authority_holds_for_new_connections(made: Certificates) -> None:
    async def test() -> None:
        needed = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
        elsewhere = made.folder / "elsewhere"
        elsewhere.mkdir()
        others = Certificates(elsewhere)
        mine = made.client(made.issue("me", "me"))
        with made.server(**needed) as tls:
            async with serving(tls=tls) as echo:
                assert await is_served(*await connect_encrypted(echo, mine))
                shutil.copy(others.ca, made.ca)
                assert looked_twice(tls)
                mine.load_verify_locations(made.ca)
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await is_served(*await connect_encrypted(echo, mine, HOST))

    run(test)


def test_a_file_that_goes_while_it_is_read_is_told_and_the_certificate_goes_on(
    made: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ServerTls(made.settings())
    before = tls.context

    def gone(*_at: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(server_tls, "examine", gone)
    made.issue("server")
    assert not looked_twice(tls)
    assert tls.context is before
    assert "No such file" in caplog.text


@pytest.mark.parametrize("verifies", ["true", "false"])
def test_connections_that_trust_every_server_are_told(
    caplog: pytest.LogCaptureFixture, verifies: str
) -> None:
    own = take_tls({"tls.enable": "true", "tls.client.authServer": verifies})
    assert context_of_client(own) is not None
    told = [each for each in caplog.records if getattr(each, "event", "") == "tls_unverified"]
    assert bool(told) == (verifies == "false")


def test_a_replaced_certificate_of_a_client_counts_for_its_next_connection(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.runtime")
    path = made.expired("me")
    own = take_tls({"tls.client.certPath": path, "tls.client.trustCertPath": made.ca})
    context = FreshContext(partial(client_context, own), own.client.paths)

    async def is_accepted(echo: Echo) -> bool:
        try:
            return await is_served(*await connect_encrypted(echo, context()))
        except (OSError, asyncio.IncompleteReadError):
            return False

    async def test() -> None:
        needed = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
        with made.server(**needed) as tls:
            async with serving(tls=tls) as echo:
                assert not await is_accepted(echo)
                made.issue("me", "me")
                assert await is_accepted(echo)
                Path(path).write_text("half of a file")
                for _ in range(3):
                    assert await is_accepted(echo), "the certificate before it goes on"

    run(test)
    found = [getattr(each, "event", "") for each in caplog.records]
    assert found.count("tls_reloaded") == found.count("tls_not_reloaded") == 1
