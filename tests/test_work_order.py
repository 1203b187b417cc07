"""The longest modules are begun first, and a session of Spark is had once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.work_order import SECONDS, SPARK, LongestFirst, from_own_place, in_one_order

ROOT = Path(__file__).parents[1]
LONG = "tests/reconcile/test_small_machines.py::test_long"
MANY = [f"tests/wire/test_frame.py::test_{number}" for number in range(5)]
FEW = "tests/test_host_and_port.py::test_one"
WITH_SPARK = [f"tests/reconcile/{name}.py::test" for name in ("test_sources", "test_log_parts")]


class Process:
    """A process of tests, which notes what it is to run."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given.append(numbers)

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_longest_is_begun_first_and_what_shares_spark_stays_together() -> None:
    options = SimpleNamespace(loadscopereorder=True, tx=["popen"], maxprocesses=None)
    config: Any = SimpleNamespace(
        rootpath=ROOT, option=options, getvalue=lambda name: getattr(options, name)
    )
    scheduler = LongestFirst(config)
    process: Any = Process()
    tests = [FEW, *MANY, WITH_SPARK[0], LONG, WITH_SPARK[1]]
    scheduler.numnodes = 1
    scheduler.add_node(process)
    scheduler.add_node_collection(process, tests)

    scheduler.schedule()
    for test in (*WITH_SPARK, LONG, *MANY, FEW):
        scheduler.mark_test_complete(process, tests.index(test))

    given = [[tests[number] for number in numbers] for numbers in process.given]
    assert given == [WITH_SPARK, [LONG], MANY, [FEW]]


def test_each_process_begins_to_collect_at_a_place_of_its_own_and_all_have_one_order() -> None:
    folders = ["app", "cli", "fuzz", "wire"]
    ways = [from_own_place(folders, {"workerid": f"gw{n}", "workercount": 2}) for n in range(2)]

    assert ways == [["app", "cli", "fuzz", "wire"], ["fuzz", "wire", "app", "cli"]]
    for way in ways:
        items: Any = [SimpleNamespace(path=Path(each), at=at) for each in way for at in range(2)]
        in_one_order(items)
        assert [(str(each.path), each.at) for each in items] == [
            (each, at) for each in folders for at in range(2)
        ]


def test_what_is_said_to_take_long_is_there() -> None:
    assert [name for name in SECONDS if name != SPARK and not (ROOT / name).exists()] == []
