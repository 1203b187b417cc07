"""Visits every state that a world can reach, and tells of the first that breaks a promise.

Breadth first, so that the story it tells is a shortest one. A message is lost when a state is
reached from which nothing that the processes and time can do leads to its end; so the way back
from the ends is walked, too.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from tests.model import redis_model
from tests.model.state import Copy, Log, Pc, Sender, State, Stub, mirrored
from tests.model.world import World, is_settled

from reliable_mq.errors import UsageError
from reliable_mq.idempotency.claim import RowState

START = State(misfortunes=1)
"""Nothing has happened; one thing will go wrong."""
SENT = State(
    misfortunes=2,
    stub=Stub(sends=1, position=0),
    copies=(Copy(is_resent=False),),
    relay=Sender(Pc.OVER),
)
"""The message is at the broker, and the row says so; two things will go wrong."""
FAILED = SENT._replace(misfortunes=2, log=Log(RowState.FAILED, 1))
"""Its first attempt failed, and Redis, told so, forgot it."""

LOST = SENT._replace(misfortunes=2, key=redis_model.DONE)
"""It was consumed, and the database has lost that; Redis has not, and the group was reset."""


class Explored(NamedTuple):
    """What an exploration came to. `story`: the moves that lead to the violation."""

    states: int
    moves: int
    depth: int
    is_complete: bool
    violation: str | None = None
    story: tuple[str, ...] = ()


class Explorer:
    """Explores one world from one state on.

    Args:
        world: its moves.
        depth_max: the longest story that is looked at.
    """

    def __init__(self, world: World, depth_max: int) -> None:
        self._world = world
        self._depth_max = depth_max
        self._numbers: dict[State, int] = {}
        self._came: list[tuple[int, str]] = []
        self._before: dict[int, list[int]] = defaultdict(list)
        self._moves = 0

    def explore(self, first: State) -> Explored:
        """Visit everything; stop at the first violation."""
        self._number(first, -1, "")
        frontier = deque([(first, 0)])
        unexplored: list[int] = []
        ends: list[int] = []
        depth = 0
        while frontier:
            state, depth = frontier.popleft()
            number = self._numbers[state]
            broken = self._world.violation(state)
            if broken is not None:
                return self._result(depth, False, broken, number)
            if is_settled(state):
                ends.append(number)
            if depth == self._depth_max:
                unexplored.append(number)
                continue
            try:
                for name, after in self._world.moves(state):
                    self._before[self._visit(frontier, after, depth, number, name)].append(number)
            except UsageError as error:  # an illegal event of one of the code's tables
                return self._result(depth, False, str(error), number)
            for name, after in self._world.misfortunes(state):
                self._visit(frontier, after, depth, number, name)
        lost = self._first_without_an_end([*ends, *unexplored])
        if lost is not None:
            return self._result(depth, False, "the message is lost", lost)
        return self._result(depth, not unexplored, None, 0)

    def _visit(
        self, frontier: deque[tuple[State, int]], state: State, depth: int, came: int, name: str
    ) -> int:
        self._moves += 1
        state = mirrored(state)
        number = self._numbers.get(state)
        if number is None:
            number = self._number(state, came, name)
            frontier.append((state, depth + 1))
        return number

    def _number(self, state: State, came: int, name: str) -> int:
        number = self._numbers[state] = len(self._came)
        self._came.append((came, name))
        return number

    def _first_without_an_end(self, ends: Sequence[int]) -> int | None:
        """Return the first state from which no calm way leads to an end."""
        reached = set(ends)
        waiting = list(ends)
        while waiting:
            for before in self._before[waiting.pop()]:
                if before not in reached:
                    reached.add(before)
                    waiting.append(before)
        return next((number for number in range(len(self._came)) if number not in reached), None)

    def _result(self, depth: int, complete: bool, broken: str | None, number: int) -> Explored:
        story: list[str] = []
        while broken is not None and number > 0:
            number, name = self._came[number]
            story.append(name)
        return Explored(
            len(self._came), self._moves, depth, complete, broken, tuple(reversed(story))
        )
