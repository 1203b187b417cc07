"""The AsyncAPI document of an application is valid by the official schema, and says what is so.

`asyncapi-3.0.0.schema.json.gz` is `schemas/3.0.0-without-$id.json` of the npm package
`@asyncapi/specs` 6.11.1 (Apache-2.0), without its descriptions and examples.
"""

import dataclasses
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from reliable_mq import ReceivedMessage, ReliableMQ, Tick, schema
from reliable_mq.cli.main import run
from reliable_mq.contract.document_text import as_json, as_yaml

OFFICIAL = json.loads(
    gzip.decompress((Path(__file__).parent / "asyncapi-3.0.0.schema.json.gz").read_bytes())
)


class Address(BaseModel):
    city: str
    place: tuple[float, float] | None = None


@schema("order.placed", version=2, upgrades={1: lambda old: old})
class OrderPlaced(BaseModel):
    id: int
    to: Address
    next: "OrderPlaced | None" = None


@schema("order.cancelled")
@dataclasses.dataclass
class OrderCancelled:
    id: int


class Card(BaseModel):
    kind: Literal["card"]


class Cash(BaseModel):
    kind: Literal["cash"]
    coins: list[int] = []


class Paid(BaseModel):
    by: Card | Cash = Field(discriminator="kind")


class Parcel(msgspec.Struct):
    size: int


@pytest.fixture
def mq() -> Iterator[ReliableMQ]:
    made = ReliableMQ("shop", broker="10.0.0.1:9876;10.0.0.2:9876", database="sqlite:///unused.db")
    made.topic("orders", payload=OrderPlaced | OrderCancelled)
    made.topic("odd|name%", groups=[], envelope="cloudevents")
    made.topic("odd_name_", groups=[])

    @made.consumer("orders", group="stock", tag="placed || paid")
    def reserve(order: OrderPlaced | OrderCancelled) -> None:
        """Reserve the goods of an order.

        Not in the summary.
        """

    @made.consumer("payments", group="books")
    def book(payment: Paid) -> None: ...

    @made.consumer("parcels", group="tracking")
    def track(parcel: Parcel, message: ReceivedMessage) -> None: ...

    @made.consumer("files", group="archive")
    def archive(body: bytes) -> None: ...

    @made.consumer("texts", group="readers")
    def read(body: str) -> None: ...

    @made.consumer("anything", group="log")
    def note(message: ReceivedMessage) -> None: ...

    @made.consumer("maps", group="maps")
    def take(payload: dict[str, Any]) -> None: ...

    @made.periodic("0 3 * * *", topic="reports", time_zone="Europe/Berlin")
    def nightly(tick: Tick) -> dict[str, str]:
        """Make the report of a day."""
        return {}

    yield made
    made.close()


def check(document: Any) -> None:
    """Validate a document by the official schema; its references must lead somewhere."""
    import jsonschema  # here: a second that each process of pytest-xdist would need

    jsonschema.Draft7Validator(OFFICIAL).validate(document)
    for reference in references(document):
        found = document
        for step in reference.removeprefix("#/").split("/"):
            assert step in found, reference
            found = found[step]


def references(value: Any) -> Iterator[str]:
    """Return every reference in a document."""
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from references(part)
    if isinstance(value, dict) and isinstance(value.get("$ref"), str):
        yield value["$ref"]


def test_the_document_is_valid_and_has_topics_consumers_and_sends(mq: ReliableMQ) -> None:
    document = mq.asyncapi(version="1.4.0")

    check(document)
    assert document["info"] == {"title": "shop", "version": "1.4.0"}
    assert [each["host"] for each in document["servers"].values()] == [
        "10.0.0.1:9876",
        "10.0.0.2:9876",
    ]
    assert {each["address"] for each in document["channels"].values()} == {
        *("orders", "payments", "parcels", "files", "texts", "anything", "maps", "reports"),
        *("odd|name%", "odd_name_"),
    }
    actions = {name: each["action"] for name, each in document["operations"].items()}
    assert actions == {
        "send.orders": "send",
        "periodic.nightly": "send",
        **{f"receive.{group}": "receive" for group in ("stock", "books", "tracking", "archive")},
        **{f"receive.{group}": "receive" for group in ("readers", "log", "maps")},
    }
    stock = document["operations"]["receive.stock"]
    assert stock["summary"] == "Reserve the goods of an order."
    assert (stock["x-consumer-group"], stock["x-tag"]) == ("stock", "placed || paid")
    assert document["channels"]["odd.7cname.25"]["x-envelope"] == "cloudevents"
    nightly = document["operations"]["periodic.nightly"]
    assert nightly["x-schedule"] == "0 3 * * * (Europe/Berlin)"


def test_a_message_has_the_schema_and_the_content_type_of_its_payload(mq: ReliableMQ) -> None:
    import jsonschema

    document = mq.asyncapi()
    messages, schemas = document["components"]["messages"], document["components"]["schemas"]

    placed = messages["order.placed.v2"]
    assert placed["contentType"] == "application/json; schema=order.placed; version=2"
    assert messages["files.archive"] == {
        "name": "files.archive",
        "contentType": "application/octet-stream",
        "title": "bytes",
    }
    assert messages["texts.readers"]["contentType"] == "text/plain; charset=utf-8"
    # A model that names itself is among the components.
    whole = {**placed["payload"], "components": document["components"]}
    body = {"id": 1, "to": {"city": "Ulm", "place": [1.5, 2.5]}, "next": None}
    jsonschema.Draft7Validator(whole).validate(body)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(whole).validate({**body, "to": {"city": 1}})
    assert any(name.startswith("payments.books.") for name in schemas)


def test_a_broker_inside_the_application_is_no_server(tmp_path: Path) -> None:
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}", database="sqlite:///unused.db")

    document = mq.asyncapi()

    check(document)
    assert "servers" not in document


def test_the_command_prints_yaml_or_json_or_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "described_shop.py").write_text(
        'from reliable_mq import ReliableMQ\nmq = ReliableMQ("shop", database="sqlite:///a.db")\n'
        'mq.topic("orders", groups=[], payload=dict)\n'
    )
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            run(("asyncapi", "--app", "described_shop:mq", *words))
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    code, printed = call("--api-version", "2.0.0")
    document = yaml.safe_load(printed)
    assert code == 0
    check(document)
    assert document["info"]["version"] == "2.0.0"
    assert json.loads(call("--format", "json", "--api-version", "2.0.0")[1]) == document
    assert call("--output", "api.yaml", "--api-version", "2.0.0") == (0, "")
    assert yaml.safe_load((tmp_path / "api.yaml").read_text()) == document
    assert call("--output", "no/api.yaml")[1].startswith("error: no/api.yaml: cannot be written: ")
    sys.modules.pop("described_shop", None)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_what_is_written_as_yaml_or_json_is_read_as_the_same(document: Any) -> None:
    assert json.loads(as_json(document)) == document
    printable = json.dumps(document, ensure_ascii=False)
    if printable.isprintable():  # PyYAML refuses raw control characters, which YAML 1.2 allows
        assert yaml.safe_load(as_yaml(document)) == document
