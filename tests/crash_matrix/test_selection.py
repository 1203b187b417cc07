"""Which deaths are tried in which order, what a journal keeps, and what the page says of it."""

from pathlib import Path

from tests.crash_matrix.journal import Death, Journal
from tests.crash_matrix.modes import SOME, USUAL, Databases, Form, Mode, Redis, Role, modes_of
from tests.crash_matrix.selection import in_turns, is_step, named
from tests.crash_matrix.table import BEGIN, END, put_into, put_points_into

SQLITE, POSTGRESQL = (Mode(kind, Databases.ONE, Form.OUTBOX, Redis.UP) for kind in USUAL)
POINTS = {
    (Role.WORKER, SQLITE): ["a: after COMMIT#1", "b: after COMMIT#1"],
    (Role.WORKER, POSTGRESQL): ["b: after COMMIT#1", "a: after COMMIT#1"],
}


def test_each_turn_has_every_point_once_and_all_turns_have_it_in_every_mode() -> None:
    turns = in_turns(POINTS)

    assert [sorted(point for _, _, point in turn) for turn in turns] == 2 * [
        ["a: after COMMIT#1", "b: after COMMIT#1"]
    ]
    tried = [death for turn in turns for death in turn]
    assert len(tried) == len(set(tried)) == 4


def test_what_has_not_left_the_process_is_no_step_but_before_an_acknowledgement() -> None:
    points = ["a: before COMMIT#1", "a: after COMMIT#1", "a: after COMMIT#2"]
    acts = ["client: before acknowledge#1", "mail: before send#1"]

    assert named({(Role.WORKER, SQLITE): points + acts}) == {
        (Role.WORKER, SQLITE): ["a: after COMMIT#1", *acts]
    }
    assert not is_step("broker: before SEND_MESSAGE_V2#1")


def test_any_two_values_of_two_columns_meet_among_some_modes_if_they_meet_at_all() -> None:
    columns = range(4)

    def pairs(modes: frozenset[Mode] | tuple[Mode, ...]) -> set[tuple[object, ...]]:
        values = [(mode.kind, mode.databases, mode.form, mode.redis) for mode in modes]
        return {(a, each[a], b, each[b]) for each in values for a in columns for b in columns}

    assert pairs(SOME) == pairs(modes_of(Role.WORKER))


def test_a_run_goes_on_where_its_journal_ends_and_the_page_says_what_remains(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal")
    journal.note_points(POINTS)
    (role, mode), (point, _) = next(iter(POINTS.items()))
    journal.note(Death(role, mode, point, True, ()))
    journal.note(Death(role, mode, point, True, ("effects of payments: []",), "a flaw"))
    journal.note_seconds(90.0)

    again = Journal(tmp_path / "journal")

    assert again.deaths == journal.deaths
    points = {column: list(these) for column, these in again.points.items()}
    assert points == POINTS
    page = put_into(f"before {BEGIN}\nold\n{END} after", points, again.deaths, again.seconds)
    assert "1 of 4 deaths were tried in 2 minutes" in page
    single = put_points_into(f"before {BEGIN}\nold\n{END} after", points, again.deaths)
    assert "| worker | `a: after COMMIT` | 2 | 1 | 1 | 0 |" in single
    assert "old" not in single
    assert f"| a flaw | {SQLITE} | yes | effects of payments: [] |" in page
    assert page.startswith("before ")
    assert page.endswith(" after")
    assert "old" not in page
