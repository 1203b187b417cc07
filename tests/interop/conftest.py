"""mqadmin, for the tests of a module."""

from collections.abc import Iterator

import pytest
from tests.interop.admin_shell import AdminShell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminShell]:
    """Give a running mqadmin."""
    with AdminShell(tmp_path_factory.mktemp("shell")) as running:
        yield running
