"""P1 to P7, whichever step is the last: real processes are killed, and what is left is counted.

A few points of each process, in one of its modes; `make crash` tries every point in every mode.
"""

from collections.abc import Iterator, Mapping

import pytest
from tests.crash_matrix.application import TABLES
from tests.crash_matrix.flaws import FLAWS, deaths_of
from tests.crash_matrix.lives import Lives
from tests.crash_matrix.matrix import LifeFailed, Matrix
from tests.crash_matrix.modes import Databases, Form, Kind, Mode, Redis, Role
from tests.crash_matrix.selection import Points, named
from tests.crash_matrix.tables import our_tables
from tests.crash_matrix.worlds import Servers

pytestmark = pytest.mark.processes

SHORT: Mapping[Role, Mode] = {
    Role.PRODUCER: Mode(Kind.POSTGRESQL, Databases.ONE, Form.SHARED, Redis.UP),
    Role.WORKER: Mode(Kind.SQLITE, Databases.ONE, Form.OUTBOX, Redis.UP),
    Role.SCHEDULER: Mode(Kind.POSTGRESQL, Databases.TWO, Form.OUTBOX, Redis.UP),
    Role.ANSWERER: Mode(Kind.SQLITE, Databases.ONE, Form.HALF, Redis.UP),
    Role.KEEPER: Mode(Kind.POSTGRESQL, Databases.ONE, Form.OUTBOX, Redis.UP),
    Role.PERSON: Mode(Kind.SQLITE, Databases.ONE, Form.SHARED, Redis.UP),
}
DEATHS = 2
"""Of each role; the points lie evenly over its life."""


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with (
        Servers([TABLES, our_tables()]) as servers,
        Lives() as lives,
        Matrix(servers, lives, hands=8) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def points(matrix: Matrix) -> Points:
    found: dict[tuple[Role, Mode], list[str]] = {}
    for column, these in matrix.points(SHORT.items()):
        assert not isinstance(these, LifeFailed), these
        found[column] = these
    return found


def test_every_promise_is_kept_whichever_step_is_the_last(matrix: Matrix, points: Points) -> None:
    wanted = [
        (*column, these[(2 * at + 1) * len(these) // (2 * DEATHS)])
        for column, these in named(points).items()
        for at in range(DEATHS)
    ]

    deaths = list(matrix.deaths(wanted))

    assert [death for death in deaths if death.wrong] == []
    never = [death for death in deaths if not death.is_reached]
    assert len(never) <= len(deaths) / 5, never  # who asks whom depends on who is faster


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_matrix_finds_the_flaws_of_the_seed(matrix: Matrix, points: Points, flaw: str) -> None:
    (death,) = matrix.deaths(deaths_of(flaw, points), flaw)

    assert any("effects of" in wrong for wrong in death.wrong), death
