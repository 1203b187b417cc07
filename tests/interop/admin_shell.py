"""Apache's mqadmin (rocketmq-tools 5.4.0), many commands in one JVM: see java/AdminShell.java."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.child_process import ChildError
from bench.java_programs import SERVER_JARS
from tests.interop.java_shell import TalkingProgram, source_command
from tests.waiting import allowed_seconds, until

COMMAND_SECONDS_MAX = 180.0
REGISTRATION_SECONDS = 60.0
_END = "\x01\n"


class AdminShell(TalkingProgram):
    """One JVM that runs one command after another. A context manager.

    Args:
        directory: where logs and exported files go.
    """

    def __init__(self, directory: Path) -> None:
        flags = (f"-Drocketmq.home.dir={directory}",)
        command = source_command("AdminShell", directory, jars=SERVER_JARS, flags=flags)
        super().__init__(command, directory, "AdminShell", end_seconds=30)

    def run(self, *words: object) -> str:
        """Run one command and return what it printed.

        Raises:
            ChildError: when nothing comes in time, or the JVM ends.
        """
        self.tell("\t".join(map(str, words)))
        printed: list[str] = []
        while True:
            try:
                line = self.line(allowed_seconds(COMMAND_SECONDS_MAX))
            except TimeoutError:
                raise ChildError(f"{words}: no end; so far:\n{''.join(printed)}") from None
            if line == _END:
                return "".join(printed).strip("\n")
            printed.append(line)

    @contextmanager
    def closing_clients(self) -> Iterator[None]:
        """Close at the end what commands as @consume have left running."""
        try:
            yield
        finally:
            self.run("@close")

    def wait_for_broker(self, name_server: str, name: str) -> None:
        """Return when a name server tells of a broker: Apache's registers ten seconds late."""
        words = ("topicRoute", "-n", name_server, "-t", "TBW102")
        until(
            lambda: f'"{name}"' in self.run(*words),
            lambda: f"broker {name} does not register",
            seconds=REGISTRATION_SECONDS,
        )
