"""Each setting says its unit; copies, dumps, pickles and our own texts have these names only."""

import copy
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reliable_mq import ClientSettings, ReliableMQ
from reliable_mq.errors import ConfigurationError
from reliable_mq.old_names import CLIENT_SETTINGS, SETTINGS
from reliable_mq.settings import Settings

ROOT = Path(__file__).parent.parent.parent
OLD = "relay_lease"
NEW = "relay_lease_seconds"
SAYS = f"{OLD} is called {NEW} now"
ANY_SETTINGS: Any = Settings  # type checkers see the fields of today only
ANY_CLIENT: Any = ClientSettings


@pytest.fixture(autouse=True)
def only_variables_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIABLE_MQ_CLIENT", raising=False)


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (SETTINGS, set(Settings.model_fields)),
        (CLIENT_SETTINGS, set(ClientSettings.__struct_fields__)),
    ],
    ids=["Settings", "ClientSettings"],
)
def test_every_row_leads_from_a_name_that_is_no_field_to_one_that_is(
    names: Mapping[str, str], fields: set[str]
) -> None:
    assert set(names.values()) <= fields
    assert not names.keys() & fields
    assert len(set(names.values())) == len(names)


# A number without a unit in its name counts what the name says.
COUNTS = {
    *("database_connections", "resend_count_max", "resend_batch_count"),
    *("retries", "in_flight_count_max", "batches_in_flight", "batch_count_max"),
    *("new_topic_queues", "pull_count", "held_count_max", "held_offset_span_max"),
}


def test_a_setting_that_is_a_number_says_its_unit_or_counts_something() -> None:
    numbers = [
        *(name for name, each in Settings.model_fields.items() if each.annotation in {int, float}),
        *(name for name, each in Settings.model_fields.items() if "float" in str(each.annotation)),
        *(
            each.name
            for each in msgspec.structs.fields(ClientSettings)
            if each.type in {int, float}
        ),
    ]
    assert len(numbers) > 40
    assert [
        name
        for name in numbers
        if not re.search(r"_(seconds|bytes)(_max)?$", name) and name not in COUNTS
    ] == []


def test_copies_dumps_and_pickles_have_the_new_names_only() -> None:
    with pytest.warns(DeprecationWarning, match=SAYS):
        settings = ANY_SETTINGS(relay_lease=7.0)
    with pytest.warns(DeprecationWarning, match="pull_size"):
        client = ANY_CLIENT(pull_size=1024)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not settings.model_dump().keys() & SETTINGS.keys()
        assert not vars(settings).keys() & SETTINGS.keys()
        assert Settings.model_validate_json(settings.model_dump_json()).relay_lease_seconds == 7.0
        for copied in (copy.copy(settings), copy.deepcopy(settings), settings.model_copy()):
            assert copied == settings
        assert pickle.loads(pickle.dumps(settings)) == settings
        assert ReliableMQ("shop", settings=settings).settings == settings
        assert not msgspec.structs.asdict(client).keys() & CLIENT_SETTINGS.keys()
        for same in (copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
            assert same == client
        assert msgspec.structs.replace(client, retries=5).pull_bytes == 1024
        assert "pull_size" not in repr(client)
        assert f" {OLD}=" not in repr(settings)


def test_a_pickle_of_a_release_with_the_old_names_is_read() -> None:
    settings = Settings(relay_lease_seconds=7.0, client={"pull_bytes": 1024})
    state: dict[str, Any] = dict(settings.__getstate__())
    values = {name: value for name, value in state["__dict__"].items() if name != NEW}
    state["__dict__"] = {**values, OLD: 7.0, "client": {"pull_size": 1024}}
    state["__pydantic_fields_set__"] = {OLD, "client"}
    read = Settings.__new__(Settings)

    read.__setstate__(state)

    assert read == settings
    assert read.model_fields_set == {NEW, "client"}


def test_a_copy_with_changes_of_a_client_takes_old_names_where_python_asks_the_object() -> None:
    with pytest.warns(DeprecationWarning, match="pull_size is called pull_bytes now"):
        assert ANY_CLIENT().__replace__(pull_size=9).pull_bytes == 9
    # What msgspec does by itself cannot read old names; it does not pass over them either.
    with pytest.raises(TypeError, match="pull_size"):
        msgspec.structs.replace(ClientSettings(), pull_size=9)
    with pytest.raises(msgspec.ValidationError, match="pull_size"):
        msgspec.convert({"pull_size": 9}, ClientSettings)


def test_a_subclass_that_declares_a_field_by_its_old_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"Mine declares the field {OLD}: {SAYS}"):

        class Mine(Settings):
            relay_lease: float = 3.0

    with pytest.raises(ConfigurationError, match="declares the field pull_size: pull_size is"):

        class MyClient(ClientSettings, frozen=True, kw_only=True):
            pull_size: int = 3


OLD_VARIABLE = re.compile(rf"RELIABLE_MQ_({'|'.join(SETTINGS).upper()})\b")
OLD_ATTRIBUTE = re.compile(rf"settings\.({'|'.join((*SETTINGS, *CLIENT_SETTINGS))})\b")


def old_names_in(text: str) -> list[str]:
    return [each[0] for pattern in (OLD_VARIABLE, OLD_ATTRIBUTE) for each in pattern.finditer(text)]


def test_nothing_of_ours_uses_an_old_name() -> None:
    own = [path for name in ("src", "tests", "bench", "examples", "docs") for path in files(name)]
    found = {
        str(path.relative_to(ROOT)): old_names_in(path.read_text())
        for path in (*own, *ROOT.glob("*.md"))
        if path.name not in {"test_old_names.py", "059-settings-say-their-unit.md"}
    }
    assert len(found) > 1000
    assert {path: names for path, names in found.items() if names} == {}


def files(name: str) -> Iterator[Path]:
    for pattern in ("*.py", "*.md"):
        yield from (ROOT / name).rglob(pattern)


def test_the_page_has_every_row() -> None:
    page = (ROOT / "docs" / "reference" / "client.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|$", page, re.MULTILINE))
    assert rows == {**SETTINGS, **CLIENT_SETTINGS}
