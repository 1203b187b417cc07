"""A framework that is not installed: the error names the extra that installs it."""

import subprocess
import sys

import pytest

MODULES = {
    "reliable_mq.contrib.fastapi": "fastapi",
    "reliable_mq.contrib.starlette": "starlette",
    "reliable_mq.contrib.flask": "flask",
    "reliable_mq.contrib.litestar": "litestar",
    "reliable_mq.contrib.django": "django",
}
EXTRAS = {"starlette": "fastapi"}


@pytest.mark.parametrize("module", MODULES)
def test_the_error_of_a_missing_framework_names_its_extra(module: str) -> None:
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
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    extra = EXTRAS.get(framework, framework)
    assert told.stdout.startswith(framework)
    assert told.stdout.endswith(f" is not installed; pip install 'reliable-mq[{extra}]'\n")
