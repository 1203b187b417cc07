"""A thread may wish to give way to others, and takes the wish back."""

import ctypes
import os
import platform
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from reliable_mq.runtime import time_slice
from reliable_mq.runtime.time_slice import wish_for_slice

_GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def slice_ns() -> int:
    """Return what Linux tells of this thread's slice; 0 before Linux 6.12."""
    told = ctypes.create_string_buffer(_ATTRIBUTES.size)
    call = _GET_ATTRIBUTES[platform.machine()]
    assert ctypes.CDLL(None).syscall(call, 0, told, _ATTRIBUTES.size, 0) == 0
    return int(_ATTRIBUTES.unpack(told.raw)[5])


def is_known() -> bool:
    """Whether this system can be asked for slices."""
    if sys.platform != "linux" or platform.machine() not in _GET_ATTRIBUTES:
        return False
    return slice_ns() > 0


@pytest.mark.skipif(not is_known(), reason="needs Linux 6.12")
def test_a_long_slice_is_taken_back_and_leaves_how_nice_the_thread_is() -> None:
    def slices() -> list[int]:
        before, nice = slice_ns(), os.getpriority(os.PRIO_PROCESS, 0)
        found = [slice_ns() for seconds in (0.02, 0) if wish_for_slice(seconds)]
        assert os.getpriority(os.PRIO_PROCESS, 0) == nice
        return [*found, before]

    with ThreadPoolExecutor(1) as thread:  # a slice is a thread's
        long, again, before = thread.submit(slices).result()
    assert long == 20_000_000
    assert again == before


def test_a_system_that_knows_no_slices_ignores_the_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "_SET_ATTRIBUTES", {})
    assert not wish_for_slice(0.02)
