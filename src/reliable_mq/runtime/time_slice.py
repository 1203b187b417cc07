"""How long this thread may keep a processor from others: a wish to the operating system.

It receives seconds. A thread with a long slice does the same work, but whoever is woken meanwhile
and has a shorter one goes first. A system that does not know the wish ignores it.
Source: Linux `sched_setattr(2)`; `sched_runtime` of ordinary processes since Linux 6.12.
"""

import ctypes
import os
import platform
import struct

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
# size, policy, flags, nice, priority, slice in ns, deadline, period
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def wish_for_slice(seconds: float) -> bool:
    """Wish for slices of so many seconds for this thread; 0: those of the system.

    Return whether the system has taken the wish.
    """
    call = _SET_ATTRIBUTES.get(platform.machine()) if os.uname().sysname == "Linux" else None
    if call is None:
        return False
    try:
        policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    except OSError:  # a sandbox
        return False
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):  # a slice means something else there
        return False
    wish = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, round(seconds * 1e9), 0, 0)
    return bool(ctypes.CDLL(None).syscall(call, 0, wish, 0) == 0)
