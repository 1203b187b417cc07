"""The raw results in `bench/results` are those that the tables show, and no others."""

import json
from pathlib import Path

import pytest
from bench import raw_results
from bench.render import PAGES, TABLES, render

KINDS = [*TABLES, "mutants"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_results_of_a_kind_are_those_of_its_newest_run(kind: str) -> None:
    assert raw_results.replaced(kind) == []


def test_every_result_is_of_a_kind_that_is_shown() -> None:
    shown = {path for kind in KINDS for path in raw_results.measurements(kind)}
    assert sorted({*raw_results.RESULTS.iterdir()} - shown) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_newest_results(page: Path) -> None:
    assert render(page.read_text()) == page.read_text()


def test_each_table_stands_on_one_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    found = {kind: text.count(f"<!-- table {kind} -->") for kind in TABLES}
    assert {kind for kind, count in found.items() if count > 1} == set()
    assert {kind for kind, count in found.items() if not count} <= {"sdk-java-local"}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(raw_results, "RESULTS", tmp_path)
    return tmp_path


def measured(name: str, hour: int, *figures: str) -> dict[str, object]:
    rounds = [{"what": what, "broker": "ours", "value": hour} for what in figures]
    return {"name": name, "finished": f"2026-11-29T{hour:02}:00:00+00:00", "rounds": rounds}


def test_a_new_run_is_kept_in_place_of_the_one_before(results: Path) -> None:
    for hour in (1, 2):
        raw_results.write(measured("send", hour, "a", "b"))
    raw_results.write(measured("send-other", 1, "a"))

    assert [path.name for path in sorted(results.iterdir())] == [
        "send-20261129-020000.json",
        "send-other-20261129-010000.json",
    ]


def test_of_what_is_measured_in_parts_the_newest_run_of_each_part_is_kept(results: Path) -> None:
    for hour, figures in enumerate(("ab", "b", "cd", "b", "d")):
        (results / f"scale-20261129-0{hour}0000.json").write_text(
            json.dumps(measured("scale", hour, *figures))
        )
    before = raw_results.newest("scale")

    raw_results.remove_replaced("scale")

    assert [path.name[-11:-5] for path in raw_results.measurements("scale")] == [
        "000000",
        "020000",
        "030000",
        "040000",
    ]
    after = raw_results.newest("scale")
    assert before is not None
    assert after is not None
    assert after["rounds"] == before["rounds"]
    values = {each["what"]: each["value"] for each in after["rounds"]}
    assert values == {"a": 0, "b": 3, "c": 2, "d": 4}
