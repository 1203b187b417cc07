"""A framework that is not installed: the error names the extra that installs it."""

from collections.abc import Iterator

import pytest
from tests.forked_programs import Programs

MODULES = {
    "reliable_mq.contrib.fastapi": "fastapi",
    "reliable_mq.contrib.starlette": "starlette",
    "reliable_mq.contrib.flask": "flask",
    "reliable_mq.contrib.litestar": "litestar",
    "reliable_mq.contrib.django": "django",
}
EXTRAS = {"starlette": "fastapi"}


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    """Programs that have what a plain install brings."""
    with Programs("reliable_mq.app.application") as made:
        yield made


@pytest.mark.parametrize("module", MODULES)
def test_the_error_of_a_missing_framework_names_its_extra(programs: Programs, module: str) -> None:
    framework = MODULES[module]
    code = f"""
import sys
sys.modules[{framework!r}] = None
from reliable_mq.errors import ConfigurationError
try:
    import {module}
except ConfigurationError as error:
    print(error)
"""
    told = programs.run(["-c", code])

    assert told.returncode == 0, told.stderr
    extra = EXTRAS.get(framework, framework)
    assert told.stdout.startswith(framework)
    assert told.stdout.endswith(f" is not installed; pip install 'reliable-mq[{extra}]'\n")
