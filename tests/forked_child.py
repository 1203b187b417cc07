"""Work that a test does in a forked child."""

import os
import traceback
from collections.abc import Callable


def in_child(work: Callable[[], None]) -> None:
    """Do work in a forked child, and raise when it failed there."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent sees the code, a person this
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
