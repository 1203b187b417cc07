"""What a disk in memory costs: what is written to it, not what its files could hold."""

import subprocess
import sys

PROGRAM = """
import resource
from reliable_mq.testing.memory_disk import MemoryDisk

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file = MemoryDisk().open("timerlog/0", 200 * 1024 * 1024)
for at in range(0, 200 * 1024 * 1024, 1024 * 1024):
    assert not any(file.read(at, 1024 * 1024))
file.write(7, [b"written"])
assert file.read(6, 9) == b"\\0written\\0"
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // UNIT)
"""
UNIT = 1024 if sys.platform == "linux" else 1024 * 1024


def test_a_large_file_that_is_read_takes_no_memory_for_what_was_never_written() -> None:
    program = PROGRAM.replace("UNIT", str(UNIT))
    assert int(subprocess.check_output([sys.executable, "-c", program])) < 20
