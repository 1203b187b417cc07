"""The port for slaves: TLS as on the other ports, certificates, and strangers who hold it."""

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest
from tests.access.access_world import ON
from tests.patient_clients import PATIENT
from tests.replication.followers import following
from tests.replication.test_pair import MASTER, SLAVE, end_of, log_of, serving, serving_with, told
from tests.runtime.test_tls import hello
from tests.runtime.tls_world import HOST, Certificates
from tests.waiting import eventually, run_scene

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Message
from reliable_mq.replication.ha_frames import encode_report
from reliable_mq.replication.standing_in import Members
from reliable_mq.runtime import fence, ha_master, ha_slave
from reliable_mq.runtime.broker_members import all_members
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.slave_door import names_of
from reliable_mq.runtime.tls_settings import TlsMode, take_tls

NEEDED = {"server_need_client_auth": "require"}
SLOW = 30.0  # seconds; longer than a test


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note all lines, and try again at once."""
    caplog.set_level(logging.INFO, "reliable_mq")
    monkeypatch.setattr(ha_slave, "RETRY_SECONDS", 0.2)


def port_of(master: BrokerServer) -> int:
    assert master._replication.master is not None
    return master._replication.master.port


def own_tls(made: Certificates, cert: str = "", **more: str) -> dict[str, str]:
    own = {"enable": "true", "client_trustCertPath": made.ca, **more}
    return own | ({"client_certPath": cert} if cert else {})


def test_a_slave_copies_over_tls_what_an_enforcing_master_has(made: Certificates) -> None:
    async def scene() -> None:
        tls = made.settings(**own_tls(made))
        async with serving_with(tls, made.folder / "master", **MASTER) as master:
            address = master.name_server_address
            settings = msgspec.structs.replace(PATIENT, tls=TLS(ca=made.ca))
            async with (
                AsyncClient(address, settings=settings) as client,
                serving_with(tls, made.folder / "slave", address, **SLAVE) as slave,
            ):
                await client.create_topic("t", 1)
                for number in range(30):
                    await client.send(Message(topic="t", body=b"%d" % number * 40_000))
                await eventually(lambda: end_of(slave) == end_of(master) > 0)
                await eventually(lambda: "t" in slave._core.state.topics.by_name)
            assert master._tls.outcomes["plain"] == 0

    run_scene(scene())
    assert log_of(made.folder / "slave") == log_of(made.folder / "master")


@pytest.mark.parametrize("more", [{}, {"enableSlaveActingMaster": "true"}])
def test_an_enforcing_master_asks_its_own_name_server_without_being_refused(
    made: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    more: dict[str, str],
) -> None:
    """It looks for a successor there, all the time. Its operator has set nothing for that."""
    monkeypatch.setattr(fence, "LOOK_SECONDS", 0.001)
    seen: list[list[Members | None]] = []

    async def noted(links: Links, config: BrokerConfig) -> list[Members | None]:
        seen.append(await all_members(links, config))
        return seen[-1]

    monkeypatch.setattr(fence, "all_members", noted)

    async def scene() -> None:
        store = made.folder / "master"
        async with serving_with(made.settings(), store, **MASTER, **more) as master:
            seen.clear()
            await eventually(lambda: len(seen) > 2)
            assert seen[-1] == [{0: master.address}]
            assert master._tls.outcomes["refused"] == 0

    run_scene(scene())
    assert None not in [each for found in seen for each in found]
    assert told(caplog, "tls_wanted") == []


def test_a_plain_slave_of_an_enforcing_master_gets_nothing_and_one_line(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it tries."""

    async def scene() -> None:
        async with (
            serving_with(made.settings(), made.folder / "m", **MASTER) as master,
            following(port_of(master)) as kept,
        ):
            await eventually(lambda: master._tls.outcomes["plain"] >= 3)
            assert kept.records == []

    run_scene(scene())
    (line,) = told(caplog, "master_lost")
    assert "before it sent anything" in line
    assert "tls.enable=true" in line
    assert told(caplog, "tls_wanted")
    assert not told(caplog, "master_followed")


def test_a_slave_that_speaks_tls_to_a_plain_master_is_told_so_on_both_sides(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with (
            serving(made.folder / "m", **MASTER) as master,
            following(port_of(master), made.client),
        ):
            await eventually(lambda: len(told(caplog, "slave_cut")) >= 2)
            await eventually(lambda: told(caplog, "master_lost"))

    run_scene(scene())
    assert "it speaks TLS, and this port does not" in told(caplog, "slave_cut")[0]
    assert len(told(caplog, "master_lost")) == 1


@pytest.mark.parametrize("kind", ["of another authority", "of another host", "expired"])
def test_a_slave_leaves_a_master_whose_certificate_is_wrong(
    made: Certificates, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    elsewhere = made.folder / "elsewhere"
    elsewhere.mkdir()
    trusting = Certificates(elsewhere) if kind == "of another authority" else made
    host = "other.example" if kind == "of another host" else HOST
    cert = made.expired("bad") if kind == "expired" else made.issue("bad", host)

    async def scene() -> None:
        tls = made.settings(server_certPath=cert)
        async with (
            serving_with(tls, made.folder / "m", **MASTER) as master,
            following(port_of(master), trusting.client) as kept,
        ):
            await eventually(lambda: master._tls.outcomes["failed"] >= 3)
            assert kept.records == []

    run_scene(scene())
    # On a starved machine, an attempt may be given up for its time, which is another reason.
    assert any("certificate is refused" in line for line in told(caplog, "master_lost"))
    assert told(caplog, "tls_refused")
    assert not told(caplog, "slave_follows")


@pytest.mark.parametrize(
    ("name", "auth", "why"),
    [
        ("slave-1", "require", ""),
        ("SLAVE-1", "require", ""),
        ("app-7", "require", "its certificate is of app-7, and haAllowedNames has none of these"),
        ("", "optional", "it shows no certificate, and haAllowedNames demands one"),
    ],
)
def test_a_slave_needs_a_certificate_with_an_allowed_name(
    made: Certificates, caplog: pytest.LogCaptureFixture, name: str, auth: str, why: str
) -> None:
    """Every client may have one of the same authority: so the name counts."""

    async def scene() -> None:
        tls = made.settings(server_need_client_auth=auth, server_trustCertPath=made.ca)
        own = {**MASTER, **ON, "haAllowedNames": "slave-2, slave-1"}
        cert = made.issue("me", name) if name else ""
        async with (
            serving_with(tls, made.folder / "m", **own) as master,
            following(port_of(master), lambda: made.client(cert)),
        ):
            event = "slave_cut" if why else "slave_follows"
            await eventually(lambda: told(caplog, event))

    run_scene(scene())
    assert bool(told(caplog, "slave_follows")) != bool(why)
    assert not why or why in told(caplog, "slave_cut")[0]


def test_with_allowed_names_a_plain_slave_gets_nothing_of_a_permissive_master(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        auth = {"server_need_client_auth": "optional", "server_trustCertPath": made.ca}
        tls = made.settings("permissive", **auth)
        own = {**MASTER, "haAllowedNames": "slave-1"}
        async with (
            serving_with(tls, made.folder / "m", **own) as master,
            following(port_of(master)) as kept,
        ):
            await eventually(lambda: told(caplog, "slave_cut"))
            assert kept.records == []

    run_scene(scene())
    assert "it shows no certificate" in told(caplog, "slave_cut")[0]


@pytest.mark.parametrize("kind", ["no certificate of its own", "does not ask", "haTlsEnable=false"])
def test_allowed_names_that_nobody_could_check_are_refused_at_the_start(
    made: Certificates, kind: str
) -> None:
    auth = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
    tls = made.settings(**auth)
    own = {**MASTER, "haAllowedNames": "slave-1"}
    if kind == "no certificate of its own":
        tls = take_tls({})
    elif kind == "does not ask":
        tls = made.settings()
    else:
        own["haTlsEnable"] = "false"

    async def scene() -> None:
        async with serving_with(tls, made.folder / "m", **own):
            pass

    with pytest.raises(ConfigurationError, match="haAllowedNames needs the certificates of slaves"):
        run_scene(scene())


def test_a_port_for_slaves_of_apache_stays_plain_and_the_log_says_so(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Their slaves have no TLS on this port."""

    async def scene() -> None:
        own = {**MASTER, "haTlsEnable": "false"}
        tls = made.settings()
        assert tls.mode is TlsMode.ENFORCING
        async with (
            serving_with(tls, made.folder / "m", **own) as master,
            following(port_of(master)),
        ):
            await eventually(lambda: told(caplog, "slave_follows"))

    run_scene(scene())
    (line,) = told(caplog, "slaves_not_encrypted")
    assert "haTlsEnable=false" in line


@pytest.mark.parametrize("data", [hello()[:50], hello()], ids=["half a hello", "no answer to it"])
def test_a_half_finished_handshake_is_given_up_with_one_line_and_slaves_go_on(
    made: Certificates, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async def scene() -> None:
        async with serving_with(made.settings(), made.folder / "m", **MASTER) as master:
            master._tls.handshake_seconds = 0.1
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
            writer.write(data)
            await eventually(lambda: told(caplog, "tls_given_up"))
            master._tls.handshake_seconds = 60.0
            async with following(port_of(master), made.client):
                await eventually(lambda: told(caplog, "slave_follows"))
            writer.close()
            del reader

    run_scene(scene())
    assert len(told(caplog, "tls_given_up")) == 1


def test_a_report_that_comes_byte_by_byte_and_never_ends_is_closed_as_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_master, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(ha_master, "_TEND_SECONDS", 0.05)

    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(master))
            for byte in encode_report(0)[:7]:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            await eventually(lambda: told(caplog, "slave_cut"))
            writer.close()

    run_scene(scene())
    assert "no report for 0.3 s" in told(caplog, "slave_cut")[0]


def test_strangers_who_hold_all_places_do_not_lock_a_slave_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They report nothing: so the oldest of them goes."""
    monkeypatch.setattr(ha_master, "_CONNECTIONS_MAX", 10)

    async def scene() -> None:
        async with serving(tmp_path / "m", **MASTER) as master:
            port = port_of(master)
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
            async with following(port):
                await eventually(lambda: told(caplog, "slave_follows"))
                more = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
                place = master._replication.master
                assert place is not None
                await eventually(lambda: len(told(caplog, "slave_cut")) >= 51)
                assert len(place._connections) <= 10
                assert len(place.slaves) == 1, "who has reported stays"
            for _, writer in [*held, *more]:
                writer.close()

    run_scene(scene())
    assert "it has reported nothing" in told(caplog, "slave_cut")[0]


def test_the_names_of_a_certificate_are_its_hosts_addresses_and_common_names() -> None:
    certificate = {
        "subject": ((("organizationName", "Shop"),), (("commonName", "Slave-1"),)),
        "subjectAltName": (
            ("DNS", "a.example"),
            ("IP Address", "10.0.0.7"),
            ("URI", "urn:x"),
            ("DNS", " "),
        ),
    }
    assert names_of(certificate) == {"slave-1", "a.example", "10.0.0.7"}
    assert names_of({}) == frozenset()
