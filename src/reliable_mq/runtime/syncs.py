"""Syncs of the log: on the event loop, by the kernel, or left to the thread of the log writer.

On a drive that syncs in 50 us, a handover to another thread or to the kernel costs more than the
sync. On busy processors, that thread must also wait for its turn. So the loop syncs while the disk
is fast. After a few slow syncs in a row, the next syncs go elsewhere for a second. If the disk
stays slow, the time doubles. One slow sync proves little, because the processors may have been
busy. But one very slow sync is enough: no client should wait for two more of these.

The kernel's own threads (Linux AIO) sync for disks that are too slow for the loop, and for
ASYNC_FLUSH. A Python thread could do the same. But each of its syncs makes two threads wait for
Python's global lock. At 10,000 messages a second, that costs as much as parsing and storing the
messages.
Source: Linux `io_submit(2)`, `include/uapi/linux/aio_abi.h`; IOCB_CMD_FDSYNC since Linux 4.18.
"""

import asyncio
import ctypes
import errno
import os
import platform
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from reliable_mq.broker_core.store.disk import DiskFile, is_out_of_descriptors
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broken import OnBroken, die
from reliable_mq.runtime.descriptors import Descriptor
from reliable_mq.runtime.disk_file import descriptor_of
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

PROMPT_SECONDS = 0.002  # as long as a turn with many messages takes
SLOW_IN_A_ROW = 3
VERY_SLOW_SECONDS = 0.05  # a spinning or overloaded disk: one such sync is enough
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 64.0
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


class Syncs(Protocol):
    """Syncs files, either at once or in the background."""

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        """Begin to sync `files`. `done` is called on the loop, perhaps before this returns.

        Returns:
            False when these files cannot be synced here; then `done` is not called.
        """
        ...

    def close(self) -> None:
        """Release the resources of the system."""
        ...


class PromptSyncs:
    """Syncs on the loop, or passes the sync to `others`.

    Args:
        others: does the syncs while the disk is slow; None: the thread of the log writer.
        clock: a monotonic clock, in seconds.
        on_broken: takes the error of a failed sync.
    """

    def __init__(
        self,
        others: Syncs | None,
        clock: Callable[[], float] = time.monotonic,
        on_broken: OnBroken = die,
    ) -> None:
        self.others = others
        self._clock = clock
        self._on_broken = on_broken
        self._slow_until = 0.0
        self._slow_in_a_row = 0
        self._pause = PAUSE_SECONDS

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        """Sync `files`. `done` is called before this returns, or later by `others`.

        Returns:
            False when a thread must do the sync, which can wait until a file can be opened.
        """
        began = self._clock()
        if began < self._slow_until:
            return self.others is not None and self.others.start(files, done)
        try:
            for file in files:
                file.sync()
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            if is_out_of_descriptors(error):  # a file cannot be opened: no sync failed
                return False
            self._on_broken(error)
        self._judge(began, self._clock())
        done()
        return True

    def _judge(self, began: float, ended: float) -> None:
        if ended - began <= PROMPT_SECONDS:
            self._slow_in_a_row = 0
            self._pause = PAUSE_SECONDS
            return
        is_very_slow = ended - began > VERY_SLOW_SECONDS
        self._slow_in_a_row = SLOW_IN_A_ROW if is_very_slow else self._slow_in_a_row + 1
        if self._slow_in_a_row >= SLOW_IN_A_ROW:
            self._slow_in_a_row -= 1  # after the pause, one more slow sync is enough
            self._slow_until = ended + self._pause
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def close(self) -> None:
        """Release the resources of `others`."""
        if self.others is not None:
            self.others.close()


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


class KernelSyncs:
    """Syncs files through the kernel.

    Args:
        kernel: does the syncs.
        descriptor_of: returns the open descriptor of a file, or None for a file that the kernel
            cannot sync alone.
        on_broken: takes the error of a failed sync.
    """

    def __init__(
        self,
        kernel: KernelSync,
        descriptor_of: Callable[[DiskFile], Descriptor | None],
        on_broken: OnBroken = die,
    ) -> None:
        self._kernel = kernel
        self._descriptor_of = descriptor_of
        self._on_broken = on_broken

    def start(self, files: Sequence[DiskFile], done: Callable[[], None]) -> bool:
        """Begin to sync `files`.

        Returns:
            False for several files; for a new file, whose name must be synced too; or if the kernel
            refuses. It does before Linux 4.18, and on some file systems.
        """
        try:
            descriptor = self._descriptor_of(files[0]) if len(files) == 1 else None
        except StoreError:  # the file cannot be opened; the thread's attempt reports it
            return False
        if descriptor is None:
            return False

        def ended(error: int) -> None:
            if error:
                self._on_broken(OSError(error, os.strerror(error)))
            done()

        try:
            self._kernel.start([descriptor.number], ended)
        except OSError as error:
            broker_events.KERNEL_SYNC_REFUSED.log(log, error=error)
            return False
        return True

    def close(self) -> None:
        """Release the kernel's resources."""
        self._kernel.close()


def syncs_of(on_broken: OnBroken, *, is_sync_flush: bool) -> Syncs | None:
    """Return the syncs of a broker; None: the thread of its log writer does them."""
    kernel = kernel_syncs(on_broken)
    # With SYNC_FLUSH syncs are small, and a client waits for each.
    return PromptSyncs(kernel, on_broken=on_broken) if is_sync_flush else kernel


def kernel_syncs(on_broken: OnBroken) -> KernelSyncs | None:
    """Return kernel syncs that need no thread, or None where the system offers none."""
    try:
        return KernelSyncs(KernelSync(asyncio.get_running_loop()), descriptor_of, on_broken)
    except OSError as error:
        broker_events.LOG_SYNCED_BY_THREAD.log(log, error=error)
        return None
