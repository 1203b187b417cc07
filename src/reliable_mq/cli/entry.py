"""The start of `reliable-mq`: Ctrl-C ends it without a traceback, from the first import on.

Receives nothing; passes the command line to `main`. Knows no verb. It imports `main` late, because
the imports of a command last longer than many a command.

What a module defines lives as long as the process. The garbage collector would look for garbage
there at every import, and once more at the end: a fifth of the time of a short command.
"""

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that Ctrl-C ended, as shells report it."""


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)  # nothing to clean up: so far it has only imported


def run() -> None:
    """Run the command line, and exit with its code."""
    gc.disable()
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:  # a shell lets commands in the background ignore it
        signal.signal(signal.SIGINT, _leave)
    from reliable_mq.cli import main  # noqa: PLC0415 - the handler must come first

    def imported() -> None:
        gc.freeze()
        gc.enable()
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        main.run(imported=imported)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, _leave)
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()


if __name__ == "__main__":
    run()
