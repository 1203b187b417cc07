"""The drawn state machines are the ones the code runs by."""

import pytest
from tests.state_diagrams import MACHINES, PAGE, Machine, page


def test_the_page_of_state_machines_shows_the_tables_of_the_code() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.state_diagrams"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)
def test_every_state_can_be_reached(machine: Machine) -> None:
    reached = {machine.first}
    for _ in machine.table:
        reached |= {after for (before, _event), after in machine.table.items() if before in reached}
    assert reached == set(type(machine.first))
