"""A demo refuses a folder in which it cannot play, before it starts anything."""

import tempfile
from pathlib import Path

import pytest

from examples.demo import disk_room
from examples.demo.stage import DemoStage
from reliable_mq.errors import ConfigurationError


def test_a_folder_that_no_demo_made_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "thesis.txt").write_text("the only copy")
    with (
        pytest.raises(ConfigurationError, match="not empty and no demo made it"),
        DemoStage(tmp_path),
    ):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "the only copy"


def test_a_disk_on_which_the_broker_would_refuse_sends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0.91, 0.90]
    monkeypatch.setattr(disk_room, "used_ratio_of", lambda _folder: used.pop(0))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(ConfigurationError, match="91% full, and a broker refuses sends above 90%"),
        DemoStage(tmp_path / "out"),
    ):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    with DemoStage(tmp_path / "out") as ready:
        assert not ready.processes
