"""The examples of the pages on the client run as they stand, in order, and print what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from tests.client.cluster import bundled

import reliable_mq

pytestmark = pytest.mark.processes

PAGES = Path(__file__).parents[2] / "docs" / "reference"
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.parametrize(
    "page", ["client.md", "client_sending.md", "client_consuming.md", "administration.md"]
)
def test_the_examples_of_the_page_print_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = EXAMPLE.findall((PAGES / page).read_text())
    examples = [each for each in found if "Client(address" in each[0]]  # others want a place to be
    assert examples
    with bundled() as broker:
        names = {name: getattr(reliable_mq, name) for name in reliable_mq.__all__}
        names["address"] = broker.name_server_address
        for program, expected in examples:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(program, page, "exec"), dict(names))
            assert printed.getvalue() == expected
