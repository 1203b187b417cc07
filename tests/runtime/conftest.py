"""What the tests of TLS share."""

from pathlib import Path

import pytest
from tests.runtime.tls_world import Certificates


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    """Give an authority that makes certificates."""
    return Certificates(tmp_path)
