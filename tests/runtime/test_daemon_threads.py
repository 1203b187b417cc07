"""A pool whose threads keep no process alive, and whose calls end as they should."""

import gc
import sys
import threading
from concurrent.futures import CancelledError

import pytest
from tests.forked_child import in_child
from tests.waiting import SECONDS_MAX, run_process, until

from reliable_mq.runtime.daemon_threads import DaemonThreads

HANGS = """
import threading
from reliable_mq.runtime.daemon_threads import DaemonThreads
pool = DaemonThreads(1, "pool")
began = threading.Event()
pool.submit(lambda: (began.set(), threading.Event().wait()))
began.wait()
pool.shutdown(wait=False)
print("the end")
"""
IS_NOT_SHUT_DOWN = """
import threading
from reliable_mq.runtime.daemon_threads import DaemonThreads
pool = DaemonThreads(1, "pool")
pool.submit(lambda: (threading.main_thread().join(), print("first")))
pool.submit(print, "second")
"""


def printed(program: str) -> str:
    """Return what a program prints, which ends by itself."""
    command = [sys.executable, "-c", program]
    return run_process(command, check=True, timeout=SECONDS_MAX, capture_output=True).stdout


def fails() -> None:
    raise ValueError("of the call")


def exits() -> None:
    sys.exit("of the call")


def test_results_and_errors_come_back_whatever_a_call_raises() -> None:
    with DaemonThreads(1, "pool") as pool:
        assert pool.submit(int, "11", base=2).result() == 3
        with pytest.raises(ValueError, match="of the call"):
            pool.submit(fails).result()
        with pytest.raises(SystemExit, match="of the call"):
            pool.submit(exits).result()
        assert pool.submit(threading.current_thread).result().name == "pool_0"


def test_so_many_calls_run_at_once_and_no_more() -> None:
    meeting = threading.Barrier(3)
    with DaemonThreads(3, "pool") as pool:
        rounds = [pool.submit(meeting.wait, SECONDS_MAX) for _ in range(30)]  # fewer would not do
        names = [pool.submit(lambda: threading.current_thread().name) for _ in range(30)]
        assert {each.result() for each in rounds} == {0, 1, 2}
        assert {each.result() for each in names} <= {"pool_0", "pool_1", "pool_2"}


def test_a_thread_that_has_nothing_to_do_takes_the_next_call() -> None:
    with DaemonThreads(50, "pool") as pool:
        for _ in range(20):
            pool.submit(int).result()
            until(lambda: pool._idle._value == 1)  # it waits again
        assert len(pool._threads) == 1


def test_after_the_end_nothing_is_taken_and_what_had_not_begun_is_cancelled() -> None:
    pool, gate = DaemonThreads(1, "pool"), threading.Event()
    running, waiting = pool.submit(gate.wait, SECONDS_MAX), pool.submit(int)
    until(running.running)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)
    gate.set()
    assert running.result()
    pool.shutdown()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_the_threads_of_a_pool_that_is_lost_end() -> None:
    pool = DaemonThreads(2, "pool")
    pool.submit(int).result()
    (thread,) = pool._threads
    del pool
    gc.collect()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    with DaemonThreads(1, "pool") as pool:
        pool.submit(int).result()
        with pool._lock:  # somebody has it at this very moment
            in_child(pool.shutdown)
        assert pool.submit(int).result() == 0


@pytest.mark.processes
def test_a_process_ends_while_a_call_hangs_in_a_pool_that_is_shut_down() -> None:
    assert printed(HANGS) == "the end\n"


@pytest.mark.processes
def test_what_a_pool_has_that_nobody_shut_down_is_done_before_the_interpreter_ends() -> None:
    assert printed(IS_NOT_SHUT_DOWN) == "first\nsecond\n"
