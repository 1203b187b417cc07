"""Sets the timer wheel back to the entries that are known to be on the medium, after a crash."""

from reliable_mq.broker_core.store.timer_log import DELETE, TimerLog
from reliable_mq.broker_core.store.timer_wheel import EMPTY, Slot, TimerWheel


def set_wheel_back(timer_log: TimerLog, wheel: TimerWheel) -> None:
    """Make the wheel name only entries before the end of the log, durably.

    The entries that the wheel names were synced before the wheel was written. So they are
    complete, and there is no damage between them and the end.
    """
    end = position = timer_log.end
    is_ahead = False
    while (after := timer_log.after(position)) != position:
        entry = timer_log.read(position)
        if entry and wheel.slot(entry.slot_ms).last >= end:
            is_ahead = True
            _set_slot_back(timer_log, wheel, entry.slot_ms, end)
        position = after
    if is_ahead:
        wheel.begin_checkpoint()()


def _set_slot_back(timer_log: TimerLog, wheel: TimerWheel, slot_ms: int, end: int) -> None:
    first, last, waiting = wheel.slot(slot_ms)
    while last >= end:
        entry = timer_log.read(last)
        if entry:
            waiting -= -1 if entry.magic & DELETE else 1
        last = entry.previous if entry and entry.previous < last else -1
    wheel.set_slot(slot_ms, Slot(first, last, waiting) if last >= 0 else EMPTY)
