"""How far a warm message walks: calls, functions, files, and changes of package.

The way is from `tx.send` to the commit of the consumer's transaction, with SQLite, an embedded
broker and no Redis. Python's profile hook sees each call of a function of `reliable_mq`, in every
thread. Work that comes by the clock is left out: see `_is_by_the_clock`.
Run as a program: `python -m tests.house.walk_count 5`. Of several messages the shortest walk is
printed: on a busy machine work for an earlier message may fall into one.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine
from tests.waiting import until

import reliable_mq
from reliable_mq import ReceivedMessage, ReliableMQ
from reliable_mq.cli.walk_recorder import CallHook

ROOT = f"{Path(reliable_mq.__file__).parent}/"
_WARM_MESSAGES = 20
_SECONDS_MAX = 60.0
_HANDLERS = "reliable-mq-handler"
# Callbacks and threads that come by the clock; all whose names end with `_forever` do, too.
_BY_THE_CLOCK = frozenset({"NameServer._expire", "NoticeThread._run", "LogWriter._saved"})
# What only runs other functions is not the first function of a piece of work.
_RUNNERS = frozenset({"LoopThread._serve", "Life.resend_forever", "_serve"})
_COROUTINE_FLAGS = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR
_BEGIN_MAX = 10  # the last instruction of a coroutine that has not been suspended yet, at most


class Walk(NamedTuple):
    """The four numbers of a walk.

    A change of package: a thread's next call is of another package than its last one.
    """

    calls: int
    functions: int
    files: int
    changes: int


class Call(NamedTuple):
    """A call on the walk, and in which thread."""

    thread: int
    code: CodeType


class CallRecorder(CallHook):
    """Records calls of the package while `is_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def called(self, frame: FrameType) -> None:
        """Note a call that belongs to the walk."""
        code = frame.f_code
        if not _is_ours(code):
            return
        if code.co_flags & _COROUTINE_FLAGS and frame.f_lasti > _BEGIN_MAX:
            return  # it goes on
        above = [each for each in _codes_above(frame) if _is_ours(each)]
        if not any(map(_is_by_the_clock, [code, *above])):
            self.calls.append(Call(threading.get_ident(), code))


def _codes_above(frame: FrameType) -> Iterator[CodeType]:
    above = frame.f_back
    while above is not None:
        yield above.f_code
        above = above.f_back


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(ROOT)


def _is_by_the_clock(code: CodeType) -> bool:
    if code.co_qualname in _RUNNERS:
        return False
    return code.co_name.endswith("_forever") or code.co_qualname in _BY_THE_CLOCK


def package_of(code: CodeType) -> str:
    """Return the package that a function lies in; a module beside the packages is one itself."""
    return code.co_filename.removeprefix(ROOT).partition("/")[0]


def count(calls: list[Call]) -> Walk:
    """Return the four numbers of the calls of one message."""
    changes, last = 0, dict[int, str]()
    for thread, code in calls:
        package = package_of(code)
        changes += last.get(thread, package) != package
        last[thread] = package
    # Codes of the same text are equal, wherever they stand.
    functions = {(code.co_filename, code.co_firstlineno, code.co_qualname) for _, code in calls}
    files = {file for file, *_ in functions}
    return Walk(len(calls), len(functions), len(files), changes)


def record(messages: int) -> list[list[Call]]:
    """Send so many warm messages, one after another, and return the calls of each.

    Raises:
        TimeoutError: when a message does not arrive.
    """
    found: list[list[Call]] = []
    with CallRecorder() as recorder, tempfile.TemporaryDirectory() as folder:
        mq = ReliableMQ(
            "shop", broker=f"embedded:{folder}/store", database=f"sqlite:///{folder}/db"
        )
        mq.create_tables()
        handled, committed = threading.Event(), threading.Event()

        @mq.consumer("orders", group="payments")
        def pay(_order: bytes, _message: ReceivedMessage) -> None:
            handled.set()

        def note_commit(_connection: Connection) -> None:
            if handled.is_set() and threading.current_thread().name.startswith(_HANDLERS):
                recorder.is_on = False
                committed.set()

        def send() -> None:
            handled.clear()
            committed.clear()
            with mq.transaction() as tx:
                tx.send("orders", b"order 7")
            if not committed.wait(_SECONDS_MAX):
                raise TimeoutError("the message did not arrive")

        event.listen(Engine, "commit", note_commit)
        try:
            with mq:
                for number in range(_WARM_MESSAGES + messages):
                    until(lambda: _is_settled(mq))
                    recorder.calls = []
                    recorder.is_on = number >= _WARM_MESSAGES
                    send()
                    if number >= _WARM_MESSAGES:
                        found.append(recorder.calls)
        finally:
            event.remove(Engine, "commit", note_commit)
    return found


def _is_settled(mq: ReliableMQ) -> bool:
    """Whether every stub is confirmed: what an earlier message needs is done."""
    with mq.database.engine.connect() as connection:
        return not connection.scalar(text("SELECT count(*) FROM rmq_message_stub WHERE status = 0"))


def main() -> None:
    """Print the four numbers, and for which packages and files they stand."""
    walks = record(int(sys.argv[1]) if sys.argv[1:] else 1)
    shortest = min(walks, key=lambda calls: (count(calls).files, len(calls)))
    for name, value in zip(Walk._fields, count(shortest), strict=True):
        print(f"{value:>6}  {name}")
    packages: Counter[str] = Counter(package_of(call.code) for call in shortest)
    for package, calls in packages.most_common():
        files = {each.code.co_filename for each in shortest if package_of(each.code) == package}
        print(f"{calls:>6}  calls of {package}, in {len(files)} files")


if __name__ == "__main__":
    main()
