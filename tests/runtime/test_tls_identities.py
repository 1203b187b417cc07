"""Who may be whom over TLS: certificates of clients and of servers, and versions."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable

import pytest
from tests.runtime.echo_server import is_served, run, serving
from tests.runtime.test_tls import VERSIONS, lines_of
from tests.runtime.tls_world import Certificates, connect_encrypted
from tests.waiting import eventually

from reliable_mq.runtime.tls_contexts import fault_of


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Note the lines of the listener."""
    caplog.set_level(logging.INFO, "reliable_mq.runtime")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_with_a_certificate_of_the_authority_is_served(
    made: Certificates, version: ssl.TLSVersion
) -> None:
    async def test() -> None:
        needed = {"server_need_client_auth": "require", "server_trustCertPath": made.ca}
        with made.server(**needed) as tls:
            async with serving(tls=tls) as echo:
                context = made.client(made.issue("me", "me"), version)
                assert await is_served(*await connect_encrypted(echo, context))

    run(test)


def foreign(made: Certificates) -> str:
    elsewhere = made.folder / "elsewhere"
    elsewhere.mkdir()
    return Certificates(elsewhere).issue("me", "me")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["none", "of a foreign authority", "expired"])
@pytest.mark.parametrize("auth", ["require", "optional"])
def test_a_client_without_a_good_certificate_gets_nothing(
    made: Certificates,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    auth: str,
    version: ssl.TLSVersion,
) -> None:
    cert = ""
    if kind != "none":
        cert = made.expired("me") if kind == "expired" else foreign(made)
    is_refused = bool(cert) or auth == "require"

    async def test() -> None:
        needed = {"server_need_client_auth": auth, "server_trustCertPath": made.ca}
        with made.server(**needed) as tls:
            async with serving(tls=tls) as echo:
                try:
                    streams = await connect_encrypted(echo, made.client(cert, version))
                    served = await is_served(*streams)
                except (OSError, asyncio.IncompleteReadError):
                    served = False
                assert served != is_refused
                assert bool(echo.seen) != is_refused
                assert tls.outcomes["failed"] == is_refused

    run(test)
    lines = lines_of(caplog, "tls_refused")
    assert len(lines) == is_refused
    assert not lines or "certificate" in lines[0]


@pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], ids=["1.0", "1.1"]
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_version_of_tls_is_refused(
    made: Certificates, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    async def test() -> None:
        with made.server() as tls:
            async with serving(tls=tls) as echo:
                context = made.client()
                context.set_ciphers("DEFAULT:@SECLEVEL=0")
                context.minimum_version = context.maximum_version = version
                with pytest.raises(OSError, match=r".*"):
                    await connect_encrypted(echo, context)
                await eventually(lambda: tls.outcomes["failed"] == 1)

    run(test)
    (line,) = lines_of(caplog, "tls_refused")
    assert "from 1.2" in line


BAD = ("expired", "not valid yet", "of another host", "of an unknown authority")


@pytest.mark.parametrize("kind", BAD)
def test_a_client_leaves_a_server_whose_certificate_is_wrong(
    made: Certificates, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A clock of the client that is behind is as a certificate whose time has not come."""
    kinds: dict[str, Callable[[str], str]] = {
        "expired": made.expired,
        "not valid yet": made.later,
        "of another host": lambda name: made.issue(name, "other"),
        "of an unknown authority": lambda _name: foreign(made),
    }
    cert = kinds[kind]("bad")
    is_of_dates = kind in ("expired", "not valid yet")

    async def test() -> None:
        with made.server(server_certPath=cert) as tls:
            async with serving(tls=tls) as echo:
                with pytest.raises(ssl.SSLCertVerificationError) as refused:
                    await connect_encrypted(echo, made.client())
                assert ("clocks" in fault_of(refused.value)) == (kind == "not valid yet")
                await eventually(lambda: tls.outcomes["failed"] == 1)
                await eventually(lambda: len(echo.gone) == 1)
                assert (tls.expires_at > time.time()) != (kind == "expired")
                assert tls.expires_at > 0, "the metric and its alert show it"

    run(test)
    assert len(lines_of(caplog, "tls_refused")) == 1
    told = [each for each in caplog.records if each.event == "tls_certificate_doubtful"]  # type: ignore[attr-defined]
    assert [each.levelno for each in told] == [logging.ERROR] * is_of_dates, "loudly, and once"
