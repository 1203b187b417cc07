"""Real servers, peers that do odd things to them, and what must hold meanwhile and afterwards.

A scene is a broker and its name server as processes, a bystander, and the peers of one case.
"""

import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import msgspec
from tests.fuzz.bystander import TOPIC, Seen
from tests.fuzz.entry import Entry, secure
from tests.fuzz.fields import PULL, SEND
from tests.fuzz.played import Played
from tests.fuzz.served_process import ServedProcess, Ways, memory_of
from tests.waiting import Budget, allowed_seconds, looks

from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, decode_command, request
from reliable_mq.wire.frame import FrameReader

MIB = 1024 * 1024
VICTIM = "victims"  # a topic and a group that may be deleted: the bystander has others
DELAY_SECONDS_MAX = 0.25
"""So long one peer may delay the answer to another, in processor time of a quiet machine."""
_ANSWER_SECONDS = 60.0
_STUCK_SECONDS = 2.0  # a server that takes no bytes so long does not read from this peer
_STEADY_LOOKS = 6
_LOOK_SECONDS = 0.05
_STEADY_SECONDS = 0.2
_MEMORY_KILLS = 1024 * MIB  # beyond that a case ends at once

Input = Callable[[str, object], None]
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Broken(Exception):
    """A server did what it must not do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the servers of a scene are run.

    Args:
        properties: of the broker.
        ways: see `Ways`.
        memory_max: what both servers may take together, above what they begin with.
        delays: whether a delay of the bystander is a finding.
        prepare: puts files into the store before the broker begins.
        is_secured: whether the broker demands TLS and signatures. Then the name server is in it.
    """

    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    ways: Ways = Ways()
    memory_max: int = 128 * MIB
    delays: bool = True
    prepare: Callable[[Path, Random], None] | None = None
    is_secured: bool = False


class Peer:
    """One connection of somebody who means harm. What the server sends is read while it sends.

    Args:
        address: "host:port".
        check: raises when a server is gone.
        entry: how it comes in.
        reads: whether it reads answers at all.
    """

    def __init__(
        self,
        address: str,
        check: Callable[[], None],
        entry: Entry,
        *,
        reads: bool = True,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._check = check
        self._entry = entry
        self._reads = reads
        self._reader = FrameReader()
        self._opaque = 0
        self._socket = socket.socket()
        if not reads:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._socket.settimeout(allowed_seconds(_ANSWER_SECONDS))
        self._socket.connect((host, int(port)))
        self.is_open = True
        try:
            self._socket = entry.opened(self._socket)
            self._socket.setblocking(False)
        except OSError:  # the server has refused it in the middle
            self.is_open = False
        self.answers: dict[int, Command] = {}
        self.answered = 0

    def frame(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", **form: int
    ) -> bytes:
        """Return a request of this connection.

        Raises:
            FrameError: when it fits no frame.
        """
        self._opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items()}
        command = request(code, fields, body)
        command.opaque = self._opaque
        for name, value in form.items():
            setattr(command, name, value)
        return self._entry.encoded(command)

    def send(self, data: bytes) -> bool:
        """Send bytes; return whether the server took all of them."""
        left = memoryview(data)
        stuck = Budget(_STUCK_SECONDS)
        while left and self.is_open:
            readable, writable, _ = select.select(
                [self._socket] if self._reads else [], [self._socket], [], 0.1
            )
            if readable:
                self._read()
            if writable and self.is_open:
                left = left[self._write(left) :]
                stuck = Budget(_STUCK_SECONDS)
            elif not readable and not stuck.is_left():
                self._check()
                return False
        return self.is_open

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data[:MIB])
        except _NOT_NOW:
            return 0
        except OSError:
            self.is_open = False
            return 0

    def _read(self) -> None:
        self._read_once()
        while self.is_open and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._read_once()

    def _read_once(self) -> None:
        try:
            data = self._socket.recv(MIB)
        except _NOT_NOW:
            return
        except OSError:
            data = b""
        if not data:
            self.is_open = False
            self._check()
            return
        for frame in self._reader.feed(data):
            command = decode_command(frame)
            if command.is_reply:
                self.answers[command.opaque] = command
                self.answered += 1

    def look(self) -> None:
        """Take what has come."""
        if self.is_open and select.select([self._socket], [], [], 0)[0]:
            self._read()

    def wait(self, opaque: int = 0) -> Command | None:
        """Return the answer to a request, the last one by default; None when the server closed.

        Raises:
            Broken: when none comes.
        """
        wanted = opaque or self._opaque
        budget = Budget(_ANSWER_SECONDS)
        while self.is_open and wanted not in self.answers:
            if select.select([self._socket], [], [], 0.2)[0]:
                self._read()
            elif not budget.is_left():
                self._check()
                raise Broken(f"a request is not answered, {budget.missed()}")
        return self.answers.pop(wanted, None)

    def ask(
        self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", **form: int
    ) -> Command | None:
        """Send a request and return its answer; None when the server closed the connection."""
        self.send(self.frame(code, ext, body, **form))
        return self.wait()

    def close(self) -> None:
        """End the connection."""
        self.is_open = False
        self._socket.close()


class Scene:
    """What a case has. A peer's connection ends with the scene.

    Args:
        random: decides the case.
        note: takes what is done, so that a finding can show it.
        folder: for the store and the logs.
        settings: how the servers are run.
    """

    def __init__(self, random: Random, note: Input, folder: Path, settings: Settings) -> None:
        self.random = random
        self.note = note
        self.folder = folder
        self._settings = settings
        self._servers: list[ServedProcess] = []
        self._peers: list[Peer] = []
        is_split = random.random() < 0.5  # whether the name server is a process of its own
        self._is_split = is_split and not settings.is_secured
        self._entry = Entry()
        self.broker = ""
        self.name_server = ""
        self.memory_began = 0

    @property
    def memory(self) -> int:
        """Bytes of both servers."""
        return sum(memory_of(server.pid) for server in self._servers)

    def check(self) -> None:
        """Raise when a server is gone, or takes so much memory that the case must end.

        Raises:
            Ended: when it is gone.
            Broken: when it takes too much.
        """
        for server in self._servers:
            server.check()
        if self.memory > _MEMORY_KILLS:
            raise Broken(f"the servers take {self.memory // MIB} MiB of memory")

    def peer(self, address: str = "", *, reads: bool = True) -> Peer:
        """Return a new connection, to the broker unless an address is given."""
        made = Peer(address or self.broker, self.check, self._entry, reads=reads)
        self._peers.append(made)
        return made

    def start(self, stack: ExitStack) -> None:
        """Start the servers on the store; they end with the stack."""
        names = ["--namesrv-port", "0"]
        self._servers, self.name_server = [], ""
        often = "--set=maxNewConnectionsPerSecondOfAddress=0"  # all peers have one address
        if self._is_split:
            settings_file = str(self.folder / "kvConfig.json")
            arguments = ["namesrv", "--port", "0", "--kv-config", settings_file, often]
            self.name_server = self._served(stack, arguments, "namesrv")["namesrv"]
            names = ["--namesrv", self.name_server]
        sets = [f"--set={name}={value}" for name, value in self._settings.properties.items()]
        store = str(self.folder / "store")
        if self._settings.is_secured:
            words, self._entry = secure(self.folder)
            names += words
        arguments = ["broker", "--store", store, "--port", "0", *names, often, *sets]
        places = self._served(stack, arguments, "broker")
        self.broker, self.name_server = places["broker"], places["namesrv"]
        self.memory_began = self.memory

    def _served(self, stack: ExitStack, arguments: Sequence[str], name: str) -> dict[str, str]:
        server = ServedProcess(arguments, self._settings.ways, self.folder / f"{name}.log")
        self._servers.append(stack.enter_context(server))
        return server.places()

    def stop(self) -> None:
        """Stop the servers cleanly, the broker first."""
        for server in reversed(self._servers):
            server.stop()

    def pids(self) -> tuple[int, int]:
        """Return the processes of the broker and of the name server."""
        return self._servers[-1].pid, self._servers[0].pid

    def close_peers(self) -> None:
        """End the connections of all peers."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def pass_time(self, seconds: float) -> None:
        """Let the servers work for a while; for what they do by the clock."""
        end = time.monotonic() + seconds
        for _ in looks(lambda: time.monotonic() < end, _LOOK_SECONDS):
            self.check()

    def until_it_takes_no_more(self) -> None:
        """Wait until the memory of the servers grows no more: what was asked is worked through."""
        most, looks = 0, 0
        while looks < _STEADY_LOOKS:
            self.pass_time(_STEADY_SECONDS)
            now = self.memory
            looks = looks + 1 if now <= most + MIB else 0
            most = max(most, now)

    def check_log(self) -> None:
        """Raise `Broken` when a server has logged a bug."""
        for server in self._servers:
            lines = server.log_text().splitlines()
            for number, line in enumerate(lines):
                if line.startswith("Traceback ") or " CRITICAL " in line:
                    shown = "\n".join(lines[max(0, number - 1) :][:30])
                    raise Broken(f"a bug is logged:\n{shown}")

    def check_service(self) -> None:
        """Raise `Broken` unless a client can send, and have what it sent.

        A server that has seen too few ends of connections refuses one: the client comes again. So
        it does where a stranger has reset its group.
        """
        body = self.random.randbytes(16)
        budget = Budget(_ANSWER_SECONDS)
        sent = None
        while sent is None and budget.is_left():
            peer = self.peer()
            sent = peer.ask(RequestCode.SEND_MESSAGE_V2, SEND, body)
        if sent is None or sent.code != ResponseCode.SUCCESS:
            raise Broken(f"a message is not taken any more: {sent and (sent.code, sent.remark)}")
        wanted = {**PULL, "queueOffset": sent.ext_fields["queueOffset"]}
        pulled = peer.ask(RequestCode.PULL_MESSAGE, wanted)
        if pulled is not None and pulled.remark == "OFFSET_RESET":
            pulled = peer.ask(RequestCode.PULL_MESSAGE, wanted)
        if pulled is None or body not in pulled.body:
            raise Broken(f"a message is not served: {pulled and (pulled.code, pulled.remark)}")
        self.until_route(TOPIC)

    def until_route(self, topic: str) -> None:
        """Wait until the name server knows a topic.

        Raises:
            Broken: when it does not come to know it.
        """
        names, budget = self.peer(self.name_server), Budget(_ANSWER_SECONDS)
        route = None
        for _ in looks(budget.is_left, _LOOK_SECONDS):
            route = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            if route is not None and route.code == ResponseCode.SUCCESS:
                return
            self.check()
        raise Broken(f"no route to {topic}, {budget.missed()}: {route and route.remark}")

    @contextmanager
    def watched(self, played: Played) -> Iterator[None]:
        """Let a bystander ask meanwhile; what it has seen goes into `played`.

        Raises:
            Broken: when it was not answered, or too late, or the servers took too much memory.
        """
        self.check_service()
        broker_pid, name_pid = self.pids()
        words = [sys.executable, "-m", "tests.fuzz.bystander", self.broker, str(broker_pid)]
        words += [self.name_server, str(name_pid), msgspec.json.encode(self._entry).decode()]
        with subprocess.Popen(
            words,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield
            finally:
                output, _ = process.communicate("end\n")
        self.check()
        seen = msgspec.json.decode(output, type=Seen)
        played.seconds = seen.delay_seconds
        played.memory = max(0, seen.memory - self.memory_began)
        self._judge(seen, played.memory)

    def _judge(self, seen: Seen, taken: int) -> None:
        self.note("bystander", seen)
        if seen.fault:
            raise Broken(f"a bystander is not answered: {seen.fault}")
        limit = allowed_delay()
        if self._settings.delays and seen.delay_seconds > limit:
            raise Late(f"{seen.delayed} of a bystander waited for {seen.delay_seconds:.3f} s")
        if taken > self._settings.memory_max:
            raise Broken(f"the servers took {taken // MIB} MiB of memory")


class Late(Broken):
    """A bystander was answered late."""


def allowed_delay() -> float:
    """Return the longest delay at the load of now: caches are shared, so work takes longer."""
    return min(allowed_seconds(DELAY_SECONDS_MAX), 2 * DELAY_SECONDS_MAX)
