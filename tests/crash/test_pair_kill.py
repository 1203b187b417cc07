"""A master or its slave dies under load: what both have acknowledged is at both."""

from pathlib import Path

import pytest
from bench.kill_pair import VICTIMS, kill_pair_repeatedly
from bench.replica_logs import compare
from tests.waiting import SECONDS_MAX

KILLS = 1  # the full bar is 20: python -m bench.kill_pair --kills 20


@pytest.mark.processes
@pytest.mark.parametrize("victim", VICTIMS)
def test_every_acknowledged_message_is_at_the_slave_and_is_served_by_it(
    tmp_path: Path, victim: str
) -> None:
    report = kill_pair_repeatedly(
        tmp_path,
        KILLS,
        seed=11,
        client="python",
        victim=victim,
        served_seconds_max=SECONDS_MAX,  # the bar of the bench may pass on a busy machine
    )
    assert report.violations == []
    assert report.kills == KILLS
    assert report.stored >= report.acknowledged > 0


def test_the_comparison_counts_what_a_slave_lacks_and_what_differs(tmp_path: Path) -> None:
    for name, segments in {"master": (b"abcd", b"efgh"), "slave": (b"abcd", b"eXgh")}.items():
        (tmp_path / name / "commitlog").mkdir(parents=True)
        for number, data in enumerate(segments):
            (tmp_path / name / "commitlog" / f"{4 * number:020d}").write_bytes(data)

    assert compare(tmp_path / "master", tmp_path / "slave", 8, 6) == (6, 2, 1)
    assert compare(tmp_path / "master", tmp_path / "slave", 4, 8) == (4, 0, 4), "a surplus, too"
