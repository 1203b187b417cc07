"""The page on testing: it names every module that is offered, and its examples of servers run."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from reliable_mq import testing

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text()
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)
MODULES = sorted(path.stem for path in Path(testing.__path__[0]).glob("[!_]*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_on_the_page_and_in_the_list_of_the_package(module: str) -> None:
    assert re.search(rf"\b{module}\b", PAGE)
    assert f"`{module}`" in str(testing.__doc__)


@pytest.mark.processes
@pytest.mark.parametrize("server", ["LocalPostgres", "LocalValkeyCluster"])
def test_the_examples_of_servers_print_what_the_page_says(server: str) -> None:
    ((program, expected),) = [each for each in EXAMPLE.findall(PAGE) if f"{server}(" in each[0]]
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        exec(compile(program, "testing.md", "exec"), {})

    assert printed.getvalue() == expected
