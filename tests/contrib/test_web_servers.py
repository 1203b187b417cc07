"""Each framework with its real server: it is killed between a COMMIT and its send."""

from pathlib import Path

import pytest
from tests.contrib.web_shops import (
    SHOPS,
    WebStage,
    a_killed_server_loses_and_doubles_nothing,
)

pytestmark = [pytest.mark.processes, pytest.mark.packaging]


@pytest.mark.parametrize("name", SHOPS)
def test_a_server_that_is_killed_between_commit_and_send_loses_and_doubles_nothing(
    name: str, tmp_path: Path, postgres_url: str
) -> None:
    stage = WebStage(SHOPS[name], tmp_path, postgres_url)

    a_killed_server_loses_and_doubles_nothing(stage, SHOPS[name])
