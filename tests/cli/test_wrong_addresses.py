"""Addresses that are not what they should be: each command says what listens there."""

import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import BAD_USAGE, FAILED, explain, run
from reliable_mq.errors import ConnectionLost
from reliable_mq.testing.local_servers import free_port

pytestmark = pytest.mark.processes

Call = Callable[..., tuple[int, str, str]]

SHOP = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database="sqlite:///shop.db")


@mq.consumer("orders", group="payments")
def pay(payload: dict) -> None:
    pass
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQBroker]:
    with ReliableMQBroker(tmp_path_factory.mktemp("broker"), "ASYNC_FLUSH") as running:
        yield running


@pytest.fixture
def call(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Give a call of the command line, in a folder with an application and its tables."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELIABLE_MQ_BROKER", raising=False)
    mq = ReliableMQ("shop", database="sqlite:///shop.db")
    mq.create_tables()
    mq.close()

    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


@contextmanager
def speaking(answer: bytes) -> Iterator[str]:
    """Give the address of another program: it answers the first bytes, and ends the connection."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


WAITS_EXAMPLE = "a list of seconds, such as [1, 5, 30]"
COMMANDS = (
    "group progress payments",
    "topic list",
    "topic route orders",
    "dlq list",
    "message show 1 --topic orders",
)


@pytest.mark.parametrize("words", COMMANDS)
def test_the_port_of_a_broker_is_told_from_that_of_a_name_server(
    words: str, broker: ReliableMQBroker, call: Call
) -> None:
    code, out, err = call(*words.split(), "--broker", broker.address)

    assert (code, out) == (FAILED, "")
    assert err == (
        f"error: {broker.address} is a broker, not a name server: give the address after namesrv="
        " in its ready line (port 9876)\n"
    )


def test_the_doctor_says_that_the_address_is_a_brokers(
    broker: ReliableMQBroker, call: Call
) -> None:
    code, out, _ = call("doctor", "--db", "sqlite:///shop.db", "--broker", broker.address)

    assert code == FAILED
    said = out.splitlines()
    place = next(n for n, line in enumerate(said) if line.startswith("FAIL broker"))
    assert f"{broker.address} is a broker, not a name server" in said[place]
    assert said[place + 1].strip() == "correct broker (RELIABLE_MQ_BROKER)"


def test_the_note_of_a_stub_says_that_the_address_is_a_brokers(
    broker: ReliableMQBroker, call: Call
) -> None:
    mq = ReliableMQ("shop", database="sqlite:///shop.db", broker=broker.address)
    with mq.transaction() as tx:
        tx.send("orders", {}, key="4711")
    mq.close()

    _, out, _ = call("stub", "show", "4711", "--db", "sqlite:///shop.db", "--json")

    assert f"{broker.address} is a broker, not a name server" in json.loads(out)["note"]


@pytest.mark.parametrize(
    "answer",
    [b"EFATAL: unsupported frontend protocol", b"HTTP/1.1 400 Bad Request\r\n", b"\x4a\0\0\0\x0a8"],
    ids=["PostgreSQL", "HTTP", "MySQL"],
)
def test_another_program_is_named_in_one_line(answer: bytes, call: Call) -> None:
    with speaking(answer) as address:
        code, out, err = call("topic", "list", "--broker", address)

    assert (code, out) == (FAILED, "")
    assert err == (
        f"error: no name server answers ({address} sent an invalid command: another program"
        " listens there, or one with TLS); a program listens there: if it demands TLS, set"
        " RELIABLE_MQ_TLS_CA=FILE; else correct the address\n"
    )


@pytest.mark.parametrize("command", [("topic", "list"), ("doctor", "--db", "sqlite:///shop.db")])
def test_who_ends_the_connection_may_demand_tls(command: tuple[str, ...], call: Call) -> None:
    with speaking(b"") as address:
        code, out, err = call(*command, "--broker", address)

    assert code == FAILED
    assert "closed the connection" in out + err
    assert "RELIABLE_MQ_TLS_CA" in out + err
    assert "start one" not in out + err


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("RESEND_COUNT_MAX", "abc", "RELIABLE_MQ_RESEND_COUNT_MAX: it must be a whole number"),
        ("CLAIM_LEASE_SECONDS", "0", "RELIABLE_MQ_CLAIM_LEASE_SECONDS: it must be greater than 0"),
        (
            "RETRY_WAITS_SECONDS",
            '["soon"]',
            f"RELIABLE_MQ_RETRY_WAITS_SECONDS: 0: it must be a number in {WAITS_EXAMPLE}",
        ),
        ("CLIENT", "x", 'RELIABLE_MQ_CLIENT is not JSON: write it like {"retries": 3}'),
        ("RELAY", "mine", "RELIABLE_MQ_RELAY: it must be 'own' or 'shared'"),
    ],
)
def test_a_wrong_variable_is_named_and_no_line_of_code(
    variable: str, value: str, says: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RELIABLE_MQ_{variable}", value)
    monkeypatch.delitem(sys.modules, "shop", raising=False)

    code, out, err = call("doctor", "shop:mq")

    assert (code, out, err) == (BAD_USAGE, "", f"error: {says}\n")


def test_a_wrong_setting_in_code_is_named_with_its_line(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("wrong.py").write_text(SHOP.replace('"shop", ', '"shop", resend_count_max="abc", '))
    monkeypatch.delitem(sys.modules, "wrong", raising=False)

    _, _, err = call("doctor", "wrong:mq")

    assert err == (
        "error: wrong.py:4: setting resend_count_max: it must be a whole number, not a str\n"
    )


def test_a_name_server_that_is_away_is_named_once(call: Call) -> None:
    address = f"127.0.0.1:{free_port()}"
    code, _, err = call("topic", "list", "--broker", address)

    assert code == FAILED
    assert err.count(address) == 1
    assert f"({address} cannot be reached: nothing listens there)" in err


def test_a_ca_that_cannot_be_read_is_the_setting_to_correct(
    call: Call, broker: ReliableMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_TLS_CA", "/nowhere/ca.pem")
    code, out, _ = call(
        "doctor", "--db", "sqlite:///shop.db", "--broker", broker.name_server_address
    )

    assert code == FAILED
    assert "correct tls_ca (RELIABLE_MQ_TLS_CA)" in out
    assert "start the name server" not in out


@pytest.mark.parametrize(
    ("why", "cure"),
    [
        ("closed the connection", "if it demands TLS, set RELIABLE_MQ_TLS_CA=FILE"),
        ("cannot be reached: the peer's certificate is refused: expired", "another certificate"),
        ("closed the connection: the peer demands a certificate of this side", "_TLS_CERT and"),
        ("cannot be reached: nothing listens there", "start one (reliable-mq broker)"),
    ],
)
def test_a_name_server_that_does_not_answer_is_told_with_its_cure(
    why: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELIABLE_MQ_TLS_CA", raising=False)
    told = explain(ConnectionLost(f"no name server answers (h:1 {why})"))

    assert told is not None
    assert cure in told[0]


def test_a_broker_at_an_address_of_another_machine_names_the_option(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ports = ("--port", "0", "--namesrv-port", "0")
    with pytest.raises(SystemExit) as ended:
        run(("broker", "--store", str(tmp_path / "store"), *ports, "--host", "203.0.113.9"))

    assert ended.value.code == FAILED
    told = " address: --host (it must be one of this machine's, or 0.0.0.0)\n"
    assert capfd.readouterr().err.endswith(told)
