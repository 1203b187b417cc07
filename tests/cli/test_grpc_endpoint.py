"""`reliable-mq proxy` and `broker --grpc-port`: what is wrong is one line that says what to do."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker, ReliableMQProxy

WITHOUT_EXTRA = (
    "import sys; sys.modules['google'] = sys.modules['google.protobuf'] = None;"
    "from reliable_mq.cli.main import run; sys.exit(run(sys.argv[1:]))"
)
SECONDS = 60


def said(*words: str, program: tuple[str, ...] = ("-m", "reliable_mq.cli.main")) -> tuple[int, str]:
    """Run a command that fails; return its exit code and what it says."""
    run = subprocess.run(
        [sys.executable, *program, *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return run.returncode, run.stderr.strip()


@pytest.mark.parametrize(
    "words",
    [("proxy", "--namesrv", "127.0.0.1:1"), ("broker", "--grpc-port", "0", "--store")],
)
def test_a_missing_extra_is_named_before_anything_starts(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    given = (*words, str(store)) if words[-1] == "--store" else words
    _, text = said(*given, program=("-c", WITHOUT_EXTRA))
    assert text.endswith("pip install 'reliable-mq[grpc]'")
    assert len(text.splitlines()) == 1
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "--namesrv is missing"),
        (("--namesrv", "a:1", "--set", "foo=bar"), "foo is no setting of the proxy"),
        (("--namesrv", "a:1", "--set", "authenticationEnabled=maybe"), "write true or false"),
        (("--namesrv", "a:1", "--set", "tls.server.mode=enforcing"), "tls.server.certPath"),
        (
            ("--namesrv", "a:1", "--set", "authenticationEnabled=true"),
            "needs innerClientAuthenticationCredentials",
        ),
    ],
)
def test_a_wrong_option_of_the_proxy_is_one_line(words: tuple[str, ...], text: str) -> None:
    code, error = said("proxy", *words)
    assert code
    assert text in error
    assert len(error.splitlines()) == 1


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, error = said("proxy", "--namesrv", "127.0.0.1:1", "--port", port)
        assert code
        assert "--port (0: a free one)" in error
        ports = ("--port", "0", "--namesrv-port", "0", "--grpc-port", port)
        code, error = said("broker", "--store", str(tmp_path), *ports)
        assert code
        assert "--grpc-port (0: a free one)" in error


def test_a_broker_under_a_controller_has_no_endpoint(tmp_path: Path) -> None:
    settings = ("--set", "enableControllerMode=true", "--set", "controllerAddr=127.0.0.1:1")
    names = ("--namesrv", "127.0.0.1:1", "--grpc-port", "0")
    code, error = said("broker", "--store", str(tmp_path), *names, *settings)
    assert code
    assert "reliable-mq proxy" in error


@pytest.mark.processes
def test_an_endpoint_whose_broker_has_no_timers_is_told(tmp_path: Path) -> None:
    """Messages that were popped come back by timers: consumers get nothing without."""
    settings = {"timerWheelEnable": "false"}
    with ReliableMQBroker(tmp_path, "ASYNC_FLUSH", settings=settings, has_grpc=True) as broker:
        log = (broker.directory / "broker-1.log").read_text()
    (line,) = [each for each in log.splitlines() if "timerWheelEnable" in each]
    assert "5.x clients can send, but receive nothing" in line
    assert "remove timerWheelEnable=false" in line


@pytest.mark.processes
def test_a_proxy_with_wrong_credentials_says_so_at_its_start(tmp_path: Path) -> None:
    secret = "root-secret-1"
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": f'{{"username":"root","password":"{secret}"}}',
        "innerClientAuthenticationCredentials": f'{{"accessKey":"root","secretKey":"{secret}"}}',
    }
    wrong = '{"accessKey":"root","secretKey":"another-secret-1"}'
    with ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH", settings=settings) as broker:
        for given, who in (
            ({"innerClientAuthenticationCredentials": wrong}, "as user root"),
            ({}, "as somebody who does not sign"),
        ):
            folder = tmp_path / who.split()[-1]
            folder.mkdir()
            with ReliableMQProxy(folder, broker.name_server_address, given) as proxy:
                line = proxy.process.wait_for(r".*refuses this proxy.*", SECONDS)[0]
            assert who in line
            assert "innerClientAuthenticationCredentials in the file of --config" in line
            assert secret not in line
