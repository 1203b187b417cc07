"""A lifeline: a pipe by which a process notices that its parent has ended, however it ended.

The parent keeps the writing end and never writes. When it ends, also by SIGKILL, the system closes
that end, and a child reads the end of the file. This works on every Unix, and a parent that ends
while the child is starting is noticed, too. `PR_SET_PDEATHSIG` does neither.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Lifeline:
    """The parent's side; as a context manager, it is cut at the end of the block.

    Invariant: only this process has the writing end.
    """

    def __init__(self) -> None:
        self.descriptor, self._kept = os.pipe()  # neither is inherited, unless it is passed

    def cut(self) -> None:
        """Close both ends. Children then believe that this process has ended."""
        os.close(self._kept)
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cut()


def when_cut(descriptor: int, call: Callable[[], None]) -> None:
    """Call a function, in a thread, when the parent has ended.

    Args:
        descriptor: the `descriptor` of the parent's lifeline, which was passed to this process.
        call: the function.
    """

    def wait() -> None:
        with contextlib.suppress(OSError):  # a wrong descriptor: nobody holds the other end
            while os.read(descriptor, 1):
                pass
        call()

    threading.Thread(target=wait, name="reliable-mq-lifeline", daemon=True).start()
