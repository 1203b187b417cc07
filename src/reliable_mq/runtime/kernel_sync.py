"""Syncs of files by the kernel's own threads (Linux AIO), reported through the event loop.

It receives descriptors, and reports when their data is durable. It serves disks that are too slow
for a sync on the loop (`prompt_sync`), and ASYNC_FLUSH. A Python thread could do the same. But each
of its syncs makes two threads wait for Python's global lock. At 10,000 messages a second, that
costs as much as parsing and storing the messages.
Source: Linux `io_submit(2)`, `include/uapi/linux/aio_abi.h`; IOCB_CMD_FDSYNC since Linux 4.18.
"""

import asyncio
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable, Sequence

# (setup, destroy, getevents, submit)
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
_FDSYNC = 3
_TELL_EVENTFD = 1
# data, key, rw_flags, opcode, priority, descriptor, buffer, size, offset, -, flags, eventfd
_IOCB = struct.Struct("=QIiHhIQQqQII")
_EVENT = struct.Struct("=QQqq")  # data, iocb, result, result2
_DEPTH = 16

Done = Callable[[int], None]
"""Gets 0, or the error number of the first failed sync."""


class KernelSync:
    """Syncs files without a thread. Only one `start` at a time may be in progress.

    Raises:
        OSError: when the kernel, or the sandbox of this process, does not support it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = _CALLS.get(platform.machine()) if os.uname().sysname == "Linux" else None
        if calls is None:
            raise OSError("no asynchronous syncs on this system")
        self._setup, self._destroy, self._getevents, self._submit = calls
        self._loop = loop
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        self._check(self._syscall(self._setup, _DEPTH, ctypes.byref(self._context)))
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._requests = ctypes.create_string_buffer(_IOCB.size * _DEPTH)
        base = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * _DEPTH)(
            *(base + number * _IOCB.size for number in range(_DEPTH))
        )
        self._events = ctypes.create_string_buffer(_EVENT.size * _DEPTH)
        self._pending = 0
        self._error = 0
        self._done: Done | None = None
        loop.add_reader(self._eventfd, self._completed)

    def start(self, descriptors: Sequence[int], done: Done) -> None:
        """Sync at most 16 files. `done` is called on the loop after the last sync.

        Raises:
            OSError: when the kernel accepts no file. If it accepts only some, `done` gets an error.
        """
        for number, descriptor in enumerate(descriptors):
            _IOCB.pack_into(
                self._requests,
                number * _IOCB.size,
                *(number, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _TELL_EVENTFD, self._eventfd),
            )
        count = len(descriptors)
        taken = self._syscall(self._submit, self._context, count, self._pointers)
        self._check(taken)
        self._pending, self._done = taken, done
        self._error = 0 if taken == count else errno.EAGAIN

    def _completed(self) -> None:
        os.eventfd_read(self._eventfd)
        count = self._syscall(self._getevents, self._context, 0, _DEPTH, self._events, None)
        if count < 0:  # the outcome is unknown; an exception here would be dropped by the loop
            self._error, count = ctypes.get_errno(), 0
            self._pending = 0
        for number in range(count):
            result = _EVENT.unpack_from(self._events, number * _EVENT.size)[2]
            self._error = self._error or -min(result, 0)
        self._pending -= count
        if not self._pending and self._done is not None:
            done, self._done = self._done, None
            done(self._error)

    def close(self) -> None:
        """Release the kernel's resources. Wait for syncs in progress."""
        self._loop.remove_reader(self._eventfd)
        self._syscall(self._destroy, self._context)
        os.close(self._eventfd)

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
