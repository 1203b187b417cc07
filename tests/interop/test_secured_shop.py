"""The shop at an Apache cluster that takes encrypted connections and known accounts only."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from bench.apache_rocketmq import SMALL_BROKER_FLAGS, ApacheRocketMQ
from cryptography.hazmat.primitives import serialization
from tests.interop.test_secured import ROOT, SETTINGS
from tests.waiting import communicate, run_process, until
from tests.with_java import INTEROP, started

from reliable_mq.client.connecting.security import TLS
from reliable_mq.errors import ConnectionLost
from reliable_mq.reconcile.brokers.spark_access import ClusterAccess
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

pytestmark = [*INTEROP, pytest.mark.spark]

SECONDS_MAX = 240
PLACE = """
from datetime import datetime
from decimal import Decimal
from examples.shop import mq, place_order

for number in (1, 2, 3):
    order = {"id": number, "household_id": 7, "placed_at": datetime(2026, 1, 1)}
    line = {"number": 1, "product_id": 5, "quantity": 1, "price": Decimal("2.50")}
    place_order({**order, "amount": Decimal("2.50")}, [line])
mq.close()
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the authority, and the servers' certificate and key as Java reads them."""
    folder = tmp_path_factory.mktemp("certificates")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    made = ca.issue_cert("127.0.0.1")
    for part in made.cert_chain_pems:
        part.write_to_path(str(folder / "server.pem"), append=True)
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


@pytest.fixture(scope="module")
def apache(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheRocketMQ]:
    system = (
        *("-Dtls.enable=true", "-Dtls.server.mode=enforcing", "-Dtls.test.mode.enable=false"),
        f"-Dtls.server.certPath={authority / 'server.pem'}",
        f"-Dtls.server.keyPath={authority / 'server.key'}",
    )
    server = ApacheRocketMQ(
        tmp_path_factory.mktemp("secured-shop"),
        "SYNC_FLUSH",
        SETTINGS | {"cleanFileForciblyEnable": "false"},  # the doctor would warn
        flags=SMALL_BROKER_FLAGS,
        system=system,
        link=ClusterAccess(ROOT, TLS(ca=str(authority / "ca.pem"))).link,
    )
    with started(server) as apache:
        yield apache


@pytest.fixture(scope="module")
def variables(
    apache: ApacheRocketMQ, authority: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """Give the environment of the shop: all that differs from one at an open cluster."""
    folder = tmp_path_factory.mktemp("shop")
    return {
        **os.environ,
        "RELIABLE_MQ_BROKER": apache.name_server_address,
        "RELIABLE_MQ_DATABASE": f"sqlite:///{folder}/shop.db",
        "RELIABLE_MQ_ACCESS_KEY": ROOT.access_key,
        "RELIABLE_MQ_SECRET_KEY": ROOT.secret_key,
        "RELIABLE_MQ_TLS_CA": str(authority / "ca.pem"),
        "RELIABLE_MQ_CLIENT": '{"request_timeout_seconds": 30.0, "connect_timeout_seconds": 30.0}',
        "RELIABLE_MQ_RESEND_LEASE_SECONDS": "120",  # longer than a send with such time-outs
    }


def done(variables: Mapping[str, str], *words: str, code: int = 0) -> str:
    ended = run_process(
        [sys.executable, *words],
        env=variables,
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def command(variables: Mapping[str, str], *words: str) -> Any:
    return json.loads(done(variables, "-m", "reliable_mq.cli.main", *words, "--json"))


def settled(variables: Mapping[str, str], *app: str) -> int:
    return len(command(variables, "stub", "list", "--status", "confirmed", *app))


@contextmanager
def running(variables: Mapping[str, str], *words: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "reliable_mq.cli.main", *words], env=variables, text=True
    )
    try:
        yield
    finally:
        process.terminate()
        communicate(process, timeout=SECONDS_MAX)
        assert process.returncode == 0


def test_the_servers_take_no_plain_connection(apache: ApacheRocketMQ) -> None:
    with BlockingLink(apache.name_server_address, 10) as link, pytest.raises(ConnectionLost):
        link.call(request(RequestCode.GET_BROKER_CLUSTER_INFO))


def test_the_shop_runs_at_a_closed_cluster_by_variables_alone(
    variables: Mapping[str, str], tmp_path: Path
) -> None:
    app = ("--app", "examples.shop:mq")
    done(variables, "-m", "examples.shop.create_tables")
    with running(variables, "run", "examples.shop:mq"):
        done(variables, "-c", PLACE)
        until(lambda: settled(variables, *app) == 3, look_seconds=1.0)
        stubs = command(variables, "stub", "list", *app)
        findings = command(variables, "doctor", "examples.shop:mq")
    told = {each["check"]: each for each in findings}
    # The machine's disk may be nearly full, which is a warning.
    assert told["broker"]["level"] in ("ok", "warning"), told["broker"]
    shown = command(variables, "stub", "show", stubs[0]["message_id"], *app)
    assert [each for each in shown["timeline"] if each["ledger"].startswith("broker")]
    assert "could not be asked" not in str(shown["timeline"])
    assert command(variables, "dlq", "list", *app) == []
    assert command(variables, "resend", "examples.shop:mq", "--once")["sent"] == 0
    assert "orders" in command(variables, "topic", "list")
    judged = ("--cluster", variables["RELIABLE_MQ_BROKER"], "--out", str(tmp_path / "report"))
    summary = command(variables, "reconcile", *judged, "--grace", "0s")
    assert summary["verdicts"] == {"settled": 6}, summary
