"""The matrix: every crash point of every role in every mode, each tried by a death.

Receives servers and lives; hands on what became of each death. The points are those that a life
passes which nobody kills, so they are as many as the code has.
"""

import math
import queue
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from tests.crash_matrix.journal import Death
from tests.crash_matrix.judge import attempts_begun, torn, wrongs
from tests.crash_matrix.lives import Lives
from tests.crash_matrix.modes import Mode, Role
from tests.crash_matrix.preparing import PREPARED_BY
from tests.crash_matrix.roles import DRAINED_BY
from tests.crash_matrix.worlds import HANDS_MAX, Servers, World

T = TypeVar("T")

TAIL_LINES = 400
TRIES = 2
"""A point that depends on which of two threads is faster is not passed by every life."""


class LifeFailed(Exception):
    """A life ended in a way that no run should see; the text holds the end of its log."""


class Matrix:
    """Runs deaths, several at a time. A context manager: at its end none is begun any more.

    Args:
        servers: what all runs share.
        lives: the zygote.
        hands: how many runs go on at once, `HANDS_MAX` at most.
    """

    def __init__(self, servers: Servers, lives: Lives, hands: int) -> None:
        self._servers = servers
        self._lives = lives
        self._hands: queue.SimpleQueue[int] = queue.SimpleQueue()
        for hand in range(min(hands, HANDS_MAX)):
            self._hands.put(hand)
        self._pool = ThreadPoolExecutor(hands)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def points(
        self, asked: Iterable[tuple[Role, Mode]]
    ) -> Iterator[tuple[tuple[Role, Mode], list[str] | LifeFailed]]:
        """Yield the points that a life passes which nobody kills, in their order, by column.

        Instead of them, why there are none.
        """
        waiting = {
            self._pool.submit(self._with_a_hand, self._points, role, mode): (role, mode)
            for role, mode in asked
        }
        for future in as_completed(waiting):
            yield waiting[future], future.result()

    def deaths(
        self,
        wanted: Sequence[tuple[Role, Mode, str]],
        flaw: str = "",
        *,
        until: float = math.inf,
    ) -> Iterator[Death]:
        """Yield what became of each death, in the order in which they end.

        Args:
            wanted: who dies where.
            flaw: what is planted in all of them.
            until: when no further one is begun, by the monotonic clock.
        """

        def tried(hand: int, role: Role, mode: Mode, point: str) -> Death | None:
            return self._tried(hand, role, mode, point, flaw) if time.monotonic() < until else None

        waiting = [
            self._pool.submit(self._with_a_hand, tried, role, mode, point)
            for role, mode, point in wanted
        ]
        for future in as_completed(waiting):
            death = future.result()
            if death is not None:
                yield death

    def _with_a_hand(self, work: Callable[..., T], *given: object) -> T:
        hand = self._hands.get()
        try:
            return work(hand, *given)
        finally:
            self._hands.put(hand)

    def _points(self, hand: int, role: Role, mode: Mode) -> list[str] | LifeFailed:
        try:
            return self._passed(hand, role, mode)
        except LifeFailed as failed:
            return failed

    def _passed(self, hand: int, role: Role, mode: Mode) -> list[str]:
        world = self._prepared(hand, role, mode, "")
        steps = Path(world.directory, "steps")
        code = self._lives.live(role, world, steps=str(steps))
        if code != 0:
            raise LifeFailed(f"{role}, {mode}: ended with {code}\n{_tail(world, role)}")
        points = steps.read_text().splitlines()
        self._servers.remove(world)
        return points

    def _tried(self, hand: int, role: Role, mode: Mode, point: str, flaw: str) -> Death:
        for _ in range(TRIES):
            try:
                death = self._die(hand, role, mode, point, flaw)
            except LifeFailed as failed:
                death = Death(role, mode, point, False, (str(failed),), flaw)
            if death.is_reached or death.wrong:
                break
        return death

    def _die(self, hand: int, role: Role, mode: Mode, point: str, flaw: str) -> Death:
        world = self._prepared(hand, role, mode, flaw)
        code = self._lives.live(role, world, at=point, steps=str(Path(world.directory, "steps")))
        if code not in (0, -signal.SIGKILL):
            wrong = [f"{role} ended with {code}\n{_tail(world, role)}"]
            return Death(role, mode, point, False, tuple(wrong), flaw)
        begun = attempts_begun(world, role)
        wrong = torn(world) if role is Role.KEEPER else []
        is_reached = code == -signal.SIGKILL
        drain = DRAINED_BY.get(role, "drain")
        code = self._lives.live(drain, self._servers.after_death(world))
        wrong += [] if code == 0 else [f"the drain ended with {code}\n{_tail(world, drain)}"]
        wrong += wrongs(world, role, begun)
        self._servers.remove(world)
        return Death(role, mode, point, is_reached, tuple(wrong), flaw)

    def _prepared(self, hand: int, role: Role, mode: Mode, flaw: str) -> World:
        world = self._servers.world(mode, hand)
        if role in PREPARED_BY:
            code = self._lives.live(PREPARED_BY[role], world)
            if code != 0:
                raise LifeFailed(
                    f"{PREPARED_BY[role]} ended with {code}\n{_tail(world, PREPARED_BY[role])}"
                )
        return msgspec.structs.replace(world, flaw=flaw)


def _tail(world: World, life: str) -> str:
    log = Path(world.directory, f"{life}.log")
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
