"""The examples of docs/client.md run as they stand, one after the other, and print what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from tests.client.cluster import bundled

import reliable_mq

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


def test_the_examples_of_the_page_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = EXAMPLE.findall(PAGE.read_text())
    examples = [each for each in found if "Client(address" in each[0]]  # others want a place to be
    assert examples
    with bundled() as broker:
        names = {name: getattr(reliable_mq, name) for name in reliable_mq.__all__}
        names["address"] = broker.name_server_address
        for program, expected in examples:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(program, str(PAGE), "exec"), dict(names))
            assert printed.getvalue() == expected
