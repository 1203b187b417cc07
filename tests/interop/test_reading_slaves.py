"""Apache's Java client at our slave: it reads on when the master is dead, and comes back."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.child_process import LoggedProcess
from bench.reliable_mq_broker import COMMAND, ReliableMQBroker
from tests.interop.java_shell import TalkingProgram, source_command
from tests.interop.test_promotion import PATIENCE
from tests.interop.test_replication import MASTER, SLAVE, Make, apaches, log_end, ours
from tests.interop.test_slave_tables import ask, create_topic, offset_at
from tests.waiting import until
from tests.with_java import INTEROP, Broker

from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

pytestmark = INTEROP


class Consumer:
    """A Java consumer of the group "g", which joins and leaves."""

    def __init__(self, program: TalkingProgram) -> None:
        self._program = program

    def tell(self, word: str, answer: str) -> list[str]:
        """Return the bodies that it got before it answered."""
        self._program.tell(word)
        got: list[str] = []
        while not (line := self._program.line(PATIENCE).strip()).startswith(answer):
            got += [line.split()[3]] if line.startswith("got ") else []
        return got

    def get(self, count: int) -> list[str]:
        """Return the bodies of so many messages."""
        got: list[str] = []
        while len(got) < count:
            line = self._program.line(PATIENCE).strip()
            got += [line.split()[3]] if line.startswith("got ") else []
        return got


def send(address: str, *bodies: str) -> None:
    header = {"a": "p", "b": "t", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": ""}
    for body in bodies:
        assert ask(address, Ask.SEND_MESSAGE_V2, header, body.encode()) == Code.SUCCESS


@pytest.mark.parametrize("master_is", [ours, apaches])
def test_a_java_consumer_reads_from_our_slave_and_loses_and_repeats_nothing(
    master_is: Make, tmp_path: Path
) -> None:
    names = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        served = LoggedProcess(
            [*COMMAND, "namesrv", "--port", names.rpartition(":")[2]], tmp_path / "namesrv.log"
        )
        stack.callback(served.stop)
        served.wait_for("ready", PATIENCE)
        master: Broker = master_is(tmp_path / "master", MASTER, names)
        stack.enter_context(master)
        slave: Broker = ours(tmp_path / "slave", SLAVE, names)
        stack.enter_context(slave)
        create_topic(master.address, "t")
        command = source_command("Member", tmp_path, names, "g", "t", "concurrent")
        program = TalkingProgram(command, tmp_path, "member", end_seconds=30)
        consumer = Consumer(stack.enter_context(program))

        consumer.tell("join", "joined")
        send(master.address, "1", "2", "3")
        assert sorted(consumer.get(3)) == ["1", "2", "3"]
        assert consumer.tell("leave", "left") == []
        send(master.address, "4", "5")
        until(lambda: log_end(slave.address) == log_end(master.address))
        until(lambda: offset_at(slave.address) == 3, seconds=PATIENCE)
        if isinstance(master, ReliableMQBroker):
            master.kill()
        else:
            master.broker.kill()

        got = consumer.tell("join", "joined")
        got += consumer.get(2 - len(got))
        assert sorted(got) == ["4", "5"], "from the slave, from where the master had it"
        assert consumer.tell("leave", "left") == []
        until(lambda: offset_at(slave.address) == 5, seconds=PATIENCE)

        if isinstance(master, ReliableMQBroker):
            master.start()
        else:
            master.start_broker()
        until(lambda: offset_at(master.address) == 5, seconds=PATIENCE)
        send(master.address, "6")
        got = consumer.tell("join", "joined")
        got += consumer.get(1 - len(got))
        assert got == ["6"]
        consumer.tell("leave", "left")
        until(lambda: offset_at(master.address) == 6, seconds=PATIENCE)
