"""What a peer sends as text is read within a budget: the slow forms only when they are short."""

import msgspec
import pytest

from reliable_mq.limits import SLOW_TEXT_SIZE_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.peer_texts import read_json, read_json_as, read_properties


class Table(msgspec.Struct):
    table: dict[str, int] = {}


def test_plain_json_may_be_long() -> None:
    numbers = list(range(SLOW_TEXT_SIZE_MAX // 4))
    assert read_json(msgspec.json.encode(numbers)) == numbers


@pytest.mark.parametrize("row", [b"'x',", b"{0:1},", b",", b"a,"])
def test_json_that_only_fastjson_reads_is_refused_when_it_is_long(row: bytes) -> None:
    count = SLOW_TEXT_SIZE_MAX // len(row)
    text = b"[" + row * (count - 2) + b"]"
    assert read_json(text) == fastjson.loads(text)
    for read in (read_json, lambda text: read_json_as(text, Table)):
        with pytest.raises(ValueError, match="not standard JSON"):
            read(b"[" + row * (count + 1) + b"]")
    assert fastjson.loads(b"[" + row * (count + 1) + b"]") is not None, (
        "a file of a store may be long"
    )


def test_a_value_of_another_kind_is_refused_as_such() -> None:
    assert read_json_as(b"{table:{'a':1}}", Table) == Table({"a": 1})
    with pytest.raises(msgspec.ValidationError):
        read_json_as(b'{"table":7}', Table)


def test_properties_are_refused_when_they_are_long() -> None:
    line = b"name=value\n"
    assert read_properties(line * (SLOW_TEXT_SIZE_MAX // len(line))) == {"name": "value"}
    with pytest.raises(ValueError, match="at most"):
        read_properties(line * (SLOW_TEXT_SIZE_MAX // len(line) + 1))
