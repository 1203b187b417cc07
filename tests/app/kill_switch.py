"""Kills a process's life at its n-th step, inside the test process.

A step is everything that another process or a server could notice: each statement before it leaves
and after it was answered, each commit before and after, each round trip to Redis before and after.
The list is not written down anywhere: it is what a run does. After its death a life can do nothing
more, whatever its code still tries; its connections are dropped, as the kernel would drop them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine, event

from reliable_mq.idempotency.redis_leases import RedisLeases


class Killed(BaseException):
    """SIGKILL. No `except Exception` sees it."""


class KillSwitch:
    """Counts steps and dies at one of them; `at` None never dies.

    Invariant: once dead, every further step raises again.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.names: list[str] = []
        self.dead = False

    def step(self, name: str) -> None:
        """Take a step, or die at it."""
        if not self.dead:
            self.names.append(name)
            self.dead = len(self.names) - 1 == self.at
        if self.dead:
            raise Killed(name)

    def watch(self, engine: Engine) -> None:
        """Make every statement and commit of an engine a step."""

        def before(*given: Any) -> None:
            self.step(f"before {_verb(given[2])}")

        def after(*given: Any) -> None:
            self.step(f"after {_verb(given[2])}")

        event.listen(engine, "before_cursor_execute", before)
        event.listen(engine, "after_cursor_execute", after)
        commit = engine.dialect.do_commit

        def do_commit(connection: Any) -> None:
            self.step("before COMMIT")
            commit(connection)
            self.step("after COMMIT")

        engine.dialect.do_commit = do_commit  # type: ignore[method-assign,assignment]

    def watch_leases(self, leases: RedisLeases) -> None:
        """Make every round trip to Redis a step."""
        call = leases._call

        async def called(asked: Sequence[Any], ended: Sequence[Any]) -> list[Any]:
            self.step("before Redis")
            answers = await call(asked, ended)
            self.step("after Redis")
            return answers

        leases._call = called  # type: ignore[method-assign]

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make the end of a function a step."""

        def called(*given: Any, **named: Any) -> Any:
            answer = function(*given, **named)
            self.step(f"after {function.__name__}")
            return answer

        return called


def _verb(statement: str) -> str:
    words = statement.split()
    return " ".join(words[: 3 if words[0] == "INSERT" else 2])
