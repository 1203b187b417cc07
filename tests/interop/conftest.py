"""mqadmin, for the tests of a module."""

from collections.abc import Iterator

import pytest
from tests.interop.admin_shell import AdminShell
from tests.with_java import skipped_without_java


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminShell]:
    """Give a running mqadmin."""
    with skipped_without_java(), AdminShell(tmp_path_factory.mktemp("shell")) as running:
        yield running
