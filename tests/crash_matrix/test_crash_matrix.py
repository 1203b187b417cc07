"""P1 to P6, whichever step is the last: real processes are killed, and what is left is counted.

One named point in eight, the modes in turn; `make crash` tries every point in every mode.
"""

from collections.abc import Iterator

import pytest
from tests.crash_matrix.application import TABLES
from tests.crash_matrix.flaws import FLAWS
from tests.crash_matrix.lives import Lives
from tests.crash_matrix.matrix import Matrix
from tests.crash_matrix.modes import SOME, Databases, Form, Kind, Mode, Redis, Role, modes_of
from tests.crash_matrix.selection import Points, each_once
from tests.crash_matrix.tables import our_tables
from tests.crash_matrix.worlds import Servers

pytestmark = pytest.mark.processes

ONE_IN = 8
"""A death takes a second or two, and there are hundreds of points."""


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with Servers([TABLES, our_tables()]) as servers, Lives() as lives:
        yield Matrix(servers, lives, hands=4)


@pytest.fixture(scope="module")
def points(matrix: Matrix) -> Points:
    return matrix.points((role, mode) for role in Role for mode in modes_of(role) if mode in SOME)


@pytest.mark.parametrize("role", Role)
def test_every_promise_is_kept_whichever_step_is_the_last(
    matrix: Matrix, points: Points, role: Role
) -> None:
    wanted = each_once({column: these for column, these in points.items() if column[0] is role})

    deaths = list(matrix.deaths(wanted[::ONE_IN]))

    assert [death for death in deaths if death.wrong] == []
    never = [death for death in deaths if not death.is_reached]
    assert len(never) <= len(deaths) / 5, never  # who asks whom depends on who is faster


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_matrix_finds_the_flaws_of_the_seed(matrix: Matrix, points: Points, flaw: str) -> None:
    mode = Mode(Kind.SQLITE, Databases.ONE, Form.OUTBOX, Redis.UP)
    point = next(
        each
        for each in points[Role.WORKER, mode]
        if each.endswith("take_payment: after INSERT effects#1")
    )

    (death,) = matrix.deaths([(Role.WORKER, mode, point)], flaw)

    assert any("effects of" in wrong for wrong in death.wrong), death
