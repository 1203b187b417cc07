"""Kills a life at one of its steps, inside the test process; `crash_points` kills real processes.

A step is everything that another process or a server could notice: each statement before it leaves
and after it was answered, each commit before and after, and whatever else calls `step`. The list is
not written down anywhere: it is what a run does, so that a new step cannot be forgotten. After its
death a life can do nothing more, whatever its code still tries.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

from reliable_mq.testing.crash_watch import statement_name, wanted_by


class Crashed(BaseException):
    """SIGKILL. No `except Exception` sees it."""


class CrashSwitch:
    """Counts steps and dies at one of them; `at` None never dies.

    Invariant: once dead, every further step raises again.

    Args:
        at: the number of the step to die at, from 0, or its name: the first one called so.
    """

    def __init__(self, at: int | str | None = None) -> None:
        self.at = at
        self.names: list[str] = []
        self.dead = False
        #: connections of the driver that the dead have in use: a kernel would close them
        self.in_use: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def step(self, name: str) -> None:
        """Take a step, or die at it.

        Raises:
            Crashed: at the step to die at, and at every later one.
        """
        if not self.dead:
            self.names.append(name)
            self.dead = self.at in (len(self.names) - 1, name)
        if self.dead:
            raise Crashed(name)

    def watch(self, engine: Engine) -> None:
        """Make every statement and commit of an engine a step, until `release`."""

        def before(*given: Any) -> None:
            self.step(f"{wanted_by()}: before {statement_name(given[2])}")

        def after(*given: Any) -> None:
            try:
                self.step(f"{wanted_by()}: after {statement_name(given[2])}")
            except Crashed:
                given[1].close()  # a cursor that is half read would keep SQLite's locks
                raise

        dialect: Any = engine.dialect
        commit = dialect.do_commit

        def do_commit(connection: Any) -> None:
            self.step(f"{wanted_by()}: before COMMIT")
            commit(connection)
            self.step(f"{wanted_by()}: after COMMIT")

        def checked_out(connection: Any, *_: object) -> None:
            self.in_use.append(connection)

        def checked_in(connection: Any, *_: object) -> None:
            if connection in self.in_use:
                self.in_use.remove(connection)

        event.listen(engine, "checkout", checked_out)
        event.listen(engine, "checkin", checked_in)
        event.listen(engine, "before_cursor_execute", before)
        event.listen(engine, "after_cursor_execute", after)
        dialect.do_commit = do_commit

        def undo() -> None:
            event.remove(engine, "before_cursor_execute", before)
            event.remove(engine, "after_cursor_execute", after)
            event.remove(engine, "checkout", checked_out)
            event.remove(engine, "checkin", checked_in)
            dialect.do_commit = commit

        self._undo.append(undo)

    def release(self) -> None:
        """Watch nothing any more."""
        while self._undo:
            self._undo.pop()()
