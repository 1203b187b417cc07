"""A process that has a new large buffer for each read gets its memory once."""

import subprocess
import sys

import pytest

PROGRAM = """
import os
import resource
from reliable_mq.runtime.freed_memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def pages_of(count):
    before = faults()
    for _ in range(count):
        b"".join((bytes(300_000), b"x"))
    return faults() - before

print(keep_freed_memory())
pages_of(10)
print(pages_of(100))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the page faults of Linux are counted")
def test_large_buffers_cost_page_faults_only_at_first() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    is_kept, pages = run.stdout.split()
    if is_kept == "False":
        pytest.skip("this C library decides for itself")
    assert int(pages) < 1_000, "100 buffers have 7,300 pages, and as many copies"
