"""`reliable-mq broker` and `reliable-mq namesrv` as people start and stop them."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.child_process import LoggedProcess
from tests.broker_core.probes.asking import pulling, sending
from tests.broker_core.raw_client import NoAnswer, RawClient
from tests.runtime.tls_world import Certificates

from reliable_mq.cli.main import BAD_USAGE, FAILED, run
from reliable_mq.runtime.addresses import advertised_ip
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.record import Record, iter_records

COMMAND = (sys.executable, "-m", "reliable_mq.cli.main")
READY = r"^ready broker=(\S+) namesrv=(\S+) store=(.*)$"
START_SECONDS, SEGMENT_SIZE = 30.0, 128 * 1024
FREE_PORTS = ("--port", "0", "--namesrv-port", "0")
NEVER_BUSY = ("--set", "osPageCacheBusyTimeOutMills=3600000")  # on a disk that others use

pytestmark = pytest.mark.processes

Start = Callable[..., LoggedProcess]
Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Give a function that starts `reliable-mq` with some words; what it starts is killed."""
    children: list[LoggedProcess] = []

    def started(*words: str) -> LoggedProcess:
        child = LoggedProcess([*COMMAND, *words], tmp_path / f"log-{len(children)}")
        children.append(child)
        return child

    yield started
    for child in children:
        child.kill()


def ready(child: LoggedProcess) -> tuple[str, str]:
    """Wait for a broker and return its address and its name servers'."""
    line = child.wait_for(READY, START_SECONDS)
    return line[1], line[2]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Give a function that returns exit code and stderr of a start that must fail."""

    def failed(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capsys.readouterr()
        assert (out, type(ended.value.code)) == ("", int)
        return int(str(ended.value.code)), err

    return failed


def acknowledged(client: RawClient) -> int:
    """Send until the broker is gone; return how many messages it acknowledged."""
    count = 0
    while True:
        try:
            answer = client.ask(Ask.SEND_MESSAGE_V2, sending(topic="orders"), b"x")
        except (NoAnswer, OSError):
            return count
        assert answer.code == Code.SUCCESS
        count += 1


def test_a_broker_says_where_it_is_and_stops_cleanly(start: Start, tmp_path: Path) -> None:
    store = tmp_path / "store"
    broker = start("broker", "--store", str(store), *FREE_PORTS)
    address, name_server = ready(broker)

    with RawClient(name_server) as client:
        route = client.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert address.encode() in route.body
    assert (store / "abort").read_text() == str(broker.child.pid)

    assert broker.stop() == 0
    assert not (store / "abort").exists()
    (_ready, stopped) = broker.output().splitlines()
    assert stopped.endswith(f"INFO the broker at {address} has stopped [server_stopped]")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_keeps_what_was_acknowledged(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    store = str(tmp_path / "store")
    broker = start("broker", "--store", store, *FREE_PORTS, *NEVER_BUSY)
    with RawClient(ready(broker)[0]) as client:
        assert client.ask(Ask.SEND_MESSAGE_V2, sending(topic="orders"), b"x").code == 0
        stopper = subprocess.Popen(
            ["sh", "-c", f"sleep 0.3; kill -{int(number)} {broker.child.pid}"]
        )
        count = 1 + acknowledged(client)
        stopper.wait()
    assert broker.child.wait(START_SECONDS) == 0

    again = start("broker", "--store", store, *FREE_PORTS)
    with RawClient(ready(again)[0]) as client:
        answer = client.ask(Ask.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})
        assert int(answer.ext_fields["offset"]) >= count


def test_properties_come_from_a_file_and_the_command_line_wins(
    start: Start, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathRootDir = {tmp_path / 'store'}\nbrokerName: from-file\nlistenPort=0\n"
        "brokerClusterName=from-file\nsendMessageThreadPoolNums=8\n"
    )
    broker = start(
        *("broker", "--config", str(conf), "--namesrv-port", "0"),
        *("--set", "brokerName=from-line", "--set", "regionId=north"),
    )
    _, name_server = ready(broker)

    with RawClient(name_server) as client:
        info = client.ask(Ask.GET_BROKER_CLUSTER_INFO).body.decode()
    assert '"clusterAddrTable":{"from-file":["from-line"]}' in info
    assert "sendMessageThreadPoolNums: this property is not supported" in broker.output()


def test_a_broker_registers_at_the_name_servers_that_are_named(
    start: Start, tmp_path: Path
) -> None:
    servers = [start("namesrv", "--port", "0") for _ in range(2)]
    addresses = [s.wait_for(r"^ready namesrv=(\S+)$", START_SECONDS)[1] for s in servers]
    broker = start(
        *("broker", "--store", str(tmp_path / "store"), "--port", "0"),
        *("--set", f"namesrvAddr={';'.join(addresses)}"),
    )
    address, named = ready(broker)
    assert named == ";".join(addresses)

    for server in addresses:
        with RawClient(server) as client:
            route = client.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
            assert address.encode() in route.body
    assert broker.stop() == 0
    with RawClient(addresses[0]) as client:
        gone = client.ask(Ask.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert gone.code == Code.TOPIC_NOT_EXIST
    assert [server.stop() for server in servers] == [0, 0]


def test_a_store_in_use_is_told_in_one_line(start: Start, refused: Refused, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    ready(start("broker", "--store", store, *FREE_PORTS))

    code, text = refused("broker", "--store", store, *FREE_PORTS)

    assert code == FAILED
    assert text.startswith(f"error: {store}")
    assert text.endswith(": another process uses this store; stop it or choose another folder\n")


def test_a_store_that_is_damaged_is_told_with_its_folder(refused: Refused, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "config").mkdir(parents=True)
    (store / "config" / "topics.json").write_text("{")

    code, text = refused("broker", "--store", str(store), *FREE_PORTS)

    assert (code, text.count("\n")) == (FAILED, 1)
    assert text.startswith(f"error: store {store}: config/topics.json: ")


def stored(client: RawClient) -> dict[int, Record]:
    """Return the messages of queue 0 that a consumer gets, by queue offset."""
    records: dict[int, Record] = {}
    offset = 0
    while True:
        answer = client.ask(Ask.PULL_MESSAGE, pulling(topic="orders", queueOffset=offset))
        if answer.code == Code.PULL_NOT_FOUND:
            return records
        records |= {record.queue_offset: record for record in iter_records(answer.body)}
        offset = int(answer.ext_fields["nextBeginOffset"])


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_damaged_records_are_named_at_the_start_and_the_rest_is_served(
    is_killed: bool, start: Start, refused: Refused, tmp_path: Path
) -> None:
    """In a store of several segments; one that is damaged to its end is refused."""
    store = tmp_path / "store"
    words = ("broker", "--store", str(store), *FREE_PORTS)
    sizes = ("--set", f"mappedFileSizeCommitLog={SEGMENT_SIZE}", "--set", "maxMessageSize=8192")
    small = (*sizes, *NEVER_BUSY)
    broker = start(*words, *small)
    with RawClient(ready(broker)[0]) as client:
        for number in range(300):
            body = b"%03d" % number * 300
            assert client.ask(Ask.SEND_MESSAGE_V2, sending(topic="orders"), body).code == 0
        sent = stored(client)
    assert len(sent) == 300
    broker.kill() if is_killed else broker.stop()
    broken = [sent[number] for number in (3, 200, 201)]
    files = {}
    for record in broken:
        begin = record.commit_log_offset % SEGMENT_SIZE
        path = store / "commitlog" / f"{record.commit_log_offset - begin:020d}"
        with path.open("r+b") as file:
            file.seek(begin + 100)
            file.write(b"\xff" * 5)
        files[path] = path.read_bytes()

    again = start(*words, *small)
    with RawClient(ready(again)[0]) as client:
        served = stored(client)
        assert client.ask(Ask.SEND_MESSAGE_V2, sending(topic="orders"), b"next").code == 0
        assert len(stored(client)) == 298

    assert served == {n: record for n, record in sent.items() if record not in broken}
    lines = [line for line in again.output().splitlines() if "no valid record" in line]
    assert len(lines) == 2, "two in a row are one stretch"
    for line, record in zip(lines, broken[:2], strict=True):
        begin = record.commit_log_offset % SEGMENT_SIZE
        path_text = f"commitlog/{record.commit_log_offset - begin:020d}"
        assert f"{path_text}: no valid record at {begin} (log offset" in line
        assert f"(log offset {record.commit_log_offset})" in line
    assert f"{broken[1].size + broken[2].size} bytes are damaged" in lines[1]
    again.stop()
    assert {path: path.read_bytes() for path in files} == files, "nothing was rewritten"

    path = next(iter(files))
    path.write_bytes(path.read_bytes()[: SEGMENT_SIZE // 2] + bytes(SEGMENT_SIZE // 2))
    code, text = refused(*words, *small)
    assert (code, text.count("\n")) == (FAILED, 1)
    assert text.startswith(f"error: store {store}: commitlog/{path.name}: no valid record at ")


@pytest.mark.parametrize("words", ["--port {}", "--namesrv-port {}", "--set haListenPort={}"])
def test_a_taken_port_is_told_in_one_line_before_the_store_is_touched(
    words: str, refused: Refused, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = words.format(port).split()
        of_ports = {"--port": FREE_PORTS[2:], "--namesrv-port": FREE_PORTS[:2]}
        free = of_ports.get(given[0], FREE_PORTS)
        code, text = refused("broker", "--store", str(store), *free, *given)

    told = f"error: 127.0.0.1:{port}: cannot listen here (address already in use); choose another "
    option = words.removesuffix(" {}").format("PORT")
    assert (code, text) == (FAILED, f"{told}address: {option} (0: a free one)\n")
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "--store is missing: name the folder of the store"),
        (("--set", "x"), "--set x: write name=value"),
        (("--set", "listenPort=x"), "listenPort=x: a port is 0..65535"),
        (("--set", "listenPort=65536"), "listenPort=65536: a port is 0..65535"),
        (("--set", "listenPort=²"), "listenPort=²: a port is 0..65535"),
        (
            ("--namesrv", "a:1,b:0"),
            "name server 'b:0' is no host:port: a port is a number from 1 to 65535",
        ),
        (("--set", "flushDiskType=x"), "flushDiskType=x: use SYNC_FLUSH or ASYNC_FLUSH"),
        (("--set", "traceOn=perhaps"), "traceOn=perhaps: give true or false"),
        (("--set", "fileReservedTime=72h"), "fileReservedTime=72h: give a whole number of hours"),
        (("--config", "/no/such.conf"), "--config /no/such.conf: No such file or directory"),
        (
            ("--namesrv", "localhost"),
            "name server 'localhost' is no host:port: it has no port; write localhost:9876",
        ),
    ],
)
def test_what_is_wrong_with_the_settings_is_told_in_one_line(
    words: tuple[str, ...], line: str, refused: Refused, tmp_path: Path
) -> None:
    store = ("--store", str(tmp_path / "store")) if words else ()

    assert refused("broker", *store, *FREE_PORTS, *words) == (BAD_USAGE, f"error: {line}\n")


@pytest.mark.parametrize(
    ("words", "what"),
    [(("--port", "70000"), "'--port'"), (("--nosuch",), "No such option: --nosuch")],
)
def test_an_option_that_cannot_be_is_named(
    words: tuple[str, ...], what: str, refused: Refused
) -> None:
    code, text = refused("broker", *words)

    assert code == BAD_USAGE
    assert what in text.splitlines()[-1]
    assert "Traceback" not in text


@pytest.mark.parametrize("verb", ["broker", "namesrv"])
def test_help_tells_every_option_and_its_default(verb: str) -> None:
    shown = subprocess.run([*COMMAND, verb, "--help"], capture_output=True, text=True, check=True)

    assert "SIGTERM" in shown.stdout
    assert "127.0.0.1" in shown.stdout
    assert "9876" in shown.stdout


def test_a_broker_on_every_address_tells_clients_one_they_can_reach() -> None:
    assert advertised_ip("127.0.0.1") == advertised_ip("[::ffff:127.0.0.1]") == "127.0.0.1"
    assert advertised_ip("localhost") in ("127.0.0.1", "::1")
    assert advertised_ip("0.0.0.0") not in ("", "0.0.0.0")
    assert advertised_ip("::") not in ("", "::")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        *(("::1", "[::1]:9"), ("[::1]", "[::1]:9")),
        *(("127.0.0.1", "127.0.0.1:9"), ("localhost", "localhost:9")),
    ],
)
def test_an_address_that_has_colons_is_told_in_brackets(host: str, address: str) -> None:
    assert address_of(host, 9) == address


def secured(tmp_path: Path) -> Certificates:
    (tmp_path / "certificates").mkdir()
    return Certificates(tmp_path / "certificates")


def test_a_broker_with_a_key_that_has_a_password_demands_tls(start: Start, tmp_path: Path) -> None:
    made = secured(tmp_path)
    cert, key = made.pair("server", b"open sesame")
    (tmp_path / "tls.properties").write_text(
        f"tls.server.certPath={cert}\ntls.server.keyPath={key}\n"
        "tls.server.keyPassword=open sesame\n"
    )
    (tmp_path / "broker.conf").write_text(f"tls.config.file={tmp_path / 'tls.properties'}\n")
    words = ("--config", str(tmp_path / "broker.conf"), "--set", "tls.server.mode=enforcing")
    broker = start("broker", "--store", str(tmp_path / "store"), *FREE_PORTS, *words)
    for address in ready(broker):
        host, _, port = address.rpartition(":")
        with RawClient(address) as client, pytest.raises(NoAnswer):
            client.ask(Ask.GET_BROKER_RUNTIME_INFO, {})
        with socket.create_connection((host, int(port))) as plain:
            made.client().wrap_socket(plain, server_hostname=host).close()
    assert broker.stop() == 0
    assert "sesame" not in broker.output()


def test_a_name_server_takes_tls_limits_and_properties(start: Start, tmp_path: Path) -> None:
    made = secured(tmp_path)
    words = {"tls.server.certPath": made.issue("server"), "maxConnections": "2"}
    settings = [word for name, value in words.items() for word in ("--set", f"{name}={value}")]
    server = start("namesrv", "--port", "0", *settings, "--set", "enableTopicList=false")
    address = server.wait_for(r"^ready namesrv=(\S+)$", START_SECONDS)[1]
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        made.client().wrap_socket(plain, server_hostname=host),
        RawClient(address) as client,
    ):
        assert b"enableTopicList=false" in client.ask(Ask.GET_NAMESRV_CONFIG, {}).body
        with RawClient(address) as another, pytest.raises((NoAnswer, ConnectionResetError)):
            another.ask(Ask.GET_NAMESRV_CONFIG, {})
    assert "2 connections are open (maxConnections)" in server.output()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "tls.server.keyPassword=hush"), "write it into the file of --config"),
        (("--set", "tls.server.certpath=x"), "did you mean tls.server.certPath?"),
        (("--set", "tls.server.mode=enforcing"), "give the certificate"),
        (("--set", "tls.server.certPath=/no/where"), "/no/where: No such file"),
        (("--set", "tls.config.file=/no/where"), "tls.config.file /no/where: No such"),
        (("--set", "maxConnections=0"), "maxConnections"),
        (("--set", "maxReceivedBytes=1"), "maxReceivedBytes"),
    ],
)
@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_wrong_settings_of_connections_are_one_line(
    refused: Refused, tmp_path: Path, server: str, words: tuple[str, ...], told: str
) -> None:
    place = ("--store", str(tmp_path), *FREE_PORTS) if server == "broker" else ("--port", "0")
    code, shown = refused(server, *place, *words)
    assert (code, shown.count("\n")) == (BAD_USAGE, 1)
    assert told in shown
    assert "hush" not in shown
