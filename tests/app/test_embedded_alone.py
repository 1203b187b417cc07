"""A broker inside the process is for one process. Who starts a second one is told what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.errors import StoreInUse


def test_an_embedded_broker_that_another_process_has_names_the_way_for_several(
    tmp_path: Path,
) -> None:
    """As somebody finds out who runs `resend` beside `run` with the program of the README."""
    lock = (
        "import fcntl, sys; file = open(sys.argv[1], 'a+'); fcntl.lockf(file, fcntl.LOCK_EX, 1); "
        "print(flush=True); sys.stdin.read()"
    )
    (tmp_path / "broker").mkdir()
    place = str(tmp_path / "broker" / "lock")
    pipe = subprocess.PIPE
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path}/broker", database="sqlite:///unused.db")
    with subprocess.Popen([sys.executable, "-c", lock, place], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreInUse, match=r"for several, run reliable-mq broker --store .*9876"):
            mq._connections.client  # noqa: B018 - it starts the broker
        other.communicate()
    mq.close()
