"""The driver of mutants is itself tried on changes whose outcome is known."""

import ast
from pathlib import Path

import pytest
from tests.house.mutant_forks import tried
from tests.house.mutant_parts import EQUIVALENT, SOURCE, TUNED, Part
from tests.house.mutants import PartRun, mutants_in, sampled
from tests.house.mutations import mutated, mutations

HASHES = SOURCE / "reliable_mq" / "wire" / "java_hash.py"
CALLED = "from reliable_mq.wire.java_hash import java_string_hash\n\ndef test_it():\n    "


def changes_of(source: str) -> list[str]:
    return [" → ".join(each.texts) for each in mutations(source)]


def test_a_comparison_is_moved_by_one_and_turned_round() -> None:
    changes = changes_of("def f(a):\n    return a < 3\n")
    assert "return a < 3 → return a <= 3" in changes
    assert "return a < 3 → return a >= 3" in changes
    assert "return a < 3 → return a < 4" in changes
    assert "return a < 3 → return None" in changes


@pytest.mark.parametrize(
    "source",
    [
        '"""Text for people."""',
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "class A(Protocol):\n    def f(self, a=1): ...",
        "class A:\n    def __repr__(self):\n        return 'A' + self.b",
        "if TYPE_CHECKING:\n    A = 1",
        "_log.info('so many: %d', 3)",
        "@dataclass(frozen=True)\nclass A: ...",
        "def f():\n    assert 1 < 2",
        "def f(a):\n    a.invariants()",
    ],
)
def test_what_no_test_should_notice_is_left_alone(source: str) -> None:
    assert changes_of(source) == []


def test_each_change_gives_a_module_that_compiles_and_differs() -> None:
    source = HASHES.read_text()
    unchanged = ast.unparse(ast.parse(source))
    for each in mutations(source):
        tree = mutated(source, each.number)
        compile(tree, "mutated", "exec")
        assert ast.unparse(tree) != unchanged


def test_a_seed_always_chooses_the_same_mutants() -> None:
    def keys(seed: int) -> list[str]:
        return [each.key for each in sampled(20, seed, ["assigned_queue"])["assigned_queue"]]

    assert keys(3) == keys(3)
    assert keys(3) != keys(4)


def test_a_fork_that_ends_neither_well_nor_ill_has_timed_out() -> None:
    def spin() -> bool:
        while True:
            pass

    assert tried(spin, 0, 60.0) == "timed out"
    assert tried(lambda: True, 5, 60.0) == "survived"
    assert tried(lambda: False, 5, 60.0) == "killed"


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        ("assert java_string_hash('éb') == 7321", "killed"),
        ("assert java_string_hash('éb') is not None", "survived"),
    ],
)
def test_a_change_lives_only_where_no_test_looks(call: str, outcome: str, tmp_path: Path) -> None:
    test = tmp_path / "test_planted.py"
    test.write_text(CALLED + call)
    planted = [
        each
        for each in mutants_in(HASHES)
        if each.change.texts[1].endswith("value * 32 + (units[at] << 8 | units[at + 1]) & _MASK")
    ]
    part = Part((str(HASHES),), (str(test),))
    rows = PartRun("planted", part, tmp_path, tmp_path / "cache").run(planted[:1])
    assert [row[1] for row in rows] == [outcome]


def test_every_equivalent_mutant_is_one_that_would_be_made() -> None:
    files = {SOURCE / "reliable_mq" / each.file for each in EQUIVALENT}
    made = {each.equivalence() for path in files for each in mutants_in(path)}
    assert set(EQUIVALENT) <= made
    assert all(EQUIVALENT.values())


def test_every_tuned_constant_is_one_that_would_be_changed() -> None:
    for file, name in TUNED:
        changes = [each.change for each in mutants_in(SOURCE / "reliable_mq" / file)]
        assert any(
            each.owner is None and each.texts[0].startswith(f"{name} = ") for each in changes
        )
    assert all(TUNED.values())
