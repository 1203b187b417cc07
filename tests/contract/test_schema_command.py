"""`reliable-mq schema`: the records of payloads, and their changes in CI."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliable_mq.cli.main import run
from reliable_mq.contract.file_schemas import read_schemas
from reliable_mq.errors import ConfigurationError

HEAD = """
from pydantic import BaseModel
from reliable_mq import ReliableMQ, schema
mq = ReliableMQ("shop", database="sqlite:///unused.db")
"""
OWN = """
class Paid(BaseModel):
    order: int
    amount: int = 0

@mq.consumer("payments", group="books")
def book(payload: Paid) -> None: ...
"""
SENT = """
class Shipped(BaseModel):
    order: int
    parcel: str = ""

mq.topic("parcels", groups=["tracking"], payload=Shipped)
"""
SHARED = """
@schema("order.placed", version=1)
class OrderPlaced(BaseModel):
    id: int
    total: int

@mq.consumer("orders", group="stock")
def reserve(order: OrderPlaced) -> None: ...
"""
ALL = OWN + SENT + SHARED

Call = Callable[..., tuple[int, str]]


class Project:
    """A folder with an application that changes."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capfd = capfd

    def write(self, text: str, *changes: tuple[str, str]) -> None:
        """Write the application's module, with changes in its text."""
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (self.folder / "changing_shop.py").write_text(HEAD + text)

    def call(self, *words: str) -> tuple[int, str]:
        """Call `reliable-mq schema …`; return the exit code and what it printed."""
        sys.modules.pop("changing_shop", None)
        with pytest.raises(SystemExit) as ended:
            run(("schema", *words, "--app", "changing_shop:mq"))
        said = self._capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Project(tmp_path, capfd)
    made.write(ALL)
    yield made
    sys.modules.pop("changing_shop", None)


def test_each_payload_is_recorded_once_and_nothing_is_to_be_said_after_that(
    project: Project,
) -> None:
    assert project.call("write") == (
        0,
        "".join(
            f"schemas/{name}.payload.json written\n"
            for name in ("order.placed.v1", "parcels.sent", "payments.books")
        ),
    )
    assert project.call("write") == (0, "every payload is recorded already\n")
    assert project.call("check") == (0, "every payload is as recorded\n")
    record = json.loads((project.folder / "schemas/order.placed.v1.payload.json").read_text())
    assert (record["name"], record["version"], record["rule"]) == ("order.placed", 1, "full")
    assert record["reads"]["required"] == ["id", "total"]


def test_a_second_class_of_a_schema_is_recorded_and_compared_by_itself(project: Project) -> None:
    """Given a group that reads only some fields, then its own class is held, too."""
    seen = """
@schema("order.placed", version=1)
class OrderSeen(BaseModel):
    id: int

@mq.consumer("orders", group="mail")
def tell(order: OrderSeen) -> None: ...
"""
    project.write(SHARED + seen)
    assert "order.placed.orders.mail.v1.payload.json written" in project.call("write")[1]
    assert project.call("check") == (0, "every payload is as recorded\n")

    project.write(SHARED + seen.replace("id: int", "id: str"))

    code, said = project.call("check")
    assert code == 1
    assert said.startswith("order.placed.orders.mail v1: backward: $.id: may be integer, and must")


CHANGES: list[tuple[str, tuple[str, str], str]] = [
    (
        "a field that is read is required",
        ("    amount: int = 0", "    amount: int"),
        "payments.books: backward: $.amount: is not always written, and is required",
    ),
    (
        "a sent field is gone",
        ('    parcel: str = ""\n', ""),
        "parcels.sent: forward: $.parcel: is not written, and is required",
    ),
    (
        "a shared field is new and required",
        ("    total: int", "    total: int\n    currency: str"),
        "order.placed v1: backward: $.currency: is not written, and is required",
    ),
    (
        "a shared field has another type",
        ("    total: int", "    total: str"),
        "order.placed v1: forward: $.total: may be string, and must be integer",
    ),
    (
        "a payload is gone",
        ('@mq.consumer("payments", group="books")', ""),
        (
            "payments.books: removed: no topic or consumer has it any more; delete its file if "
            "that is meant"
        ),
    ),
]


@pytest.mark.parametrize(
    ("change", "said"), [each[1:] for each in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_an_incompatible_change_is_one_line_and_code_1(
    project: Project, change: tuple[str, str], said: str
) -> None:
    project.call("write")
    project.write(ALL, change)

    code, printed = project.call("check")

    assert code == 1
    assert said in printed.splitlines()
    as_json = json.loads(project.call("check", "--json")[1])
    assert said.partition(":")[0] in {each["payload"] for each in as_json["incompatible"]}


COMPATIBLE = {
    "a field with a default that is read": (
        "    order: int\n    amount",
        "    x: int = 1\n    order: int\n    amount",
    ),
    "a field that is not read any more": ("    amount: int = 0\n", ""),
    "a new sent field": ('    parcel: str = ""', '    parcel: str = ""\n    size: int = 0'),
    "a new shared field with a default": ("    total: int", '    total: int\n    note: str = ""'),
}


@pytest.mark.parametrize("change", COMPATIBLE.values(), ids=COMPATIBLE)
def test_a_compatible_change_passes_and_is_to_be_recorded(
    project: Project, change: tuple[str, str]
) -> None:
    project.call("write")
    project.write(ALL, change)

    code, printed = project.call("check")
    assert (code, printed.count("\n")) == (0, 1)
    assert "differs from its record, or has none: reliable-mq schema write" in printed
    assert project.call("check", "--exact")[0] == 1

    project.call("write")
    assert project.call("check", "--exact") == (0, "every payload is as recorded\n")


UPGRADED = (
    "version=1)",
    'version=2, upgrades={1: lambda old: {**old, "total": str(old["total"])}})',
)


def test_with_a_higher_version_and_an_upgrade_a_payload_may_change(project: Project) -> None:
    project.call("write")
    project.write(ALL, UPGRADED, ("    total: int", "    total: str"))

    code, printed = project.call("check")
    assert (code, printed) == (
        0,
        "order.placed v2: differs from its record, or has none: reliable-mq schema write\n",
    )
    project.call("write")
    assert project.call("check") == (0, "every payload is as recorded\n")
    assert len(read_schemas(project.folder / "schemas")) == 4


def test_a_recorded_version_that_cannot_be_read_any_more_is_incompatible(
    project: Project,
) -> None:
    project.call("write")
    project.write(ALL, ("version=1)", "version=2)"))

    code, printed = project.call("check")

    assert code == 1
    assert printed.splitlines()[0] == (
        "order.placed v1: backward: version 1 cannot be read: the oldest readable is 2; give an "
        "upgrade for it"
    )


def test_code_that_is_older_than_the_records_is_incompatible(project: Project) -> None:
    project.write(ALL, UPGRADED)
    project.call("write")
    project.write(ALL)

    code, printed = project.call("check")

    assert code == 1
    assert "the code writes version 1, and cannot read version 2" in printed


def test_a_missing_folder_is_told_with_what_to_do(project: Project) -> None:
    assert project.call("check", "--folder", "none") == (
        1 if issubclass(ConfigurationError, OSError) else 2,
        "error: there is no folder none: write it with reliable-mq schema write\n",
    )


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", '{"name": 1}', "[" * 100_000, '{"name":"a","rule":"x","version":0}'],
    ids=lambda text: text[:12],
)
def test_a_record_that_cannot_be_read_is_one_line(project: Project, text: str) -> None:
    (project.folder / "schemas").mkdir()
    (project.folder / "schemas" / "bad.payload.json").write_text(text)

    code, printed = project.call("check")

    assert code == 2
    assert printed.startswith("error: schemas/bad.payload.json: it is no record of a payload: ")
    assert printed.count("\n") == 1
    assert len(printed) < 400


def test_a_type_without_a_schema_is_named(project: Project) -> None:
    project.write(
        """
from numbers import Number

mq.topic("odd", payload=Number)
"""
    )

    code, printed = project.call("write")

    assert code == 2
    assert printed.startswith("error: odd.sent: no JSON Schema of <class 'numbers.Number'>: ")


def test_a_topic_has_one_payload(project: Project) -> None:
    project.write(
        'mq.topic("a", payload=int)\nmq.topic("a", payload=int)\nmq.topic("a", payload=str)\n'
    )

    code, printed = project.call("write")

    assert code == 2
    assert "topic 'a' has the payload <class 'int'> already; write a union of both" in printed
