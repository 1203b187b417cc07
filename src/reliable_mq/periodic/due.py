"""Which tick of a periodic message is due, and what becomes of missed ones. Pure.

A tick is missed if no scheduler ran at its time. Without a limit, the newest missed tick is made
up, however late, and the ones before it are skipped. With a limit (`catch_up`), each missed tick is
made up that is at most that late, the oldest first.
"""

from typing import NamedTuple

from reliable_mq.periodic.schedule import Schedule

TURNED_BACK_SECONDS = 60.0
"""If ticks are decided further ahead than this, the clock was set back since."""


class DueTick(NamedTuple):
    """What is to be decided next, in seconds since the epoch.

    `tick`: fire it; None: only skip. `skipped`: how many ticks before it are skipped.
    `decided_until`: every tick up to this time is decided then.
    """

    tick: float | None
    skipped: int
    decided_until: float


def due_tick(
    schedule: Schedule, decided_until: float, now: float, catch_up: float | None
) -> DueTick | None:
    """Return what is due; None: nothing is.

    Args:
        schedule: the schedule.
        decided_until: every tick up to this time is decided, in seconds since the epoch.
        now: the time, in seconds since the epoch.
        catch_up: how late a tick may be fired, in seconds. None: only the newest is fired.
    """
    if is_turned_back(decided_until, now):
        return None
    if catch_up is None:
        newest = schedule.newest(decided_until, now)
        if newest is None:
            return None
        return DueTick(newest, schedule.count(decided_until, newest), newest)
    begin = max(decided_until, now - catch_up)
    tick = schedule.first(begin)
    is_due = tick is not None and tick <= now
    skipped = schedule.count(decided_until, begin) if begin > decided_until else 0
    if not (is_due or skipped):
        return None
    return DueTick(tick if is_due else None, skipped, tick if is_due and tick else begin)


def is_turned_back(decided_until: float, now: float) -> bool:
    """Return whether the clock was set back since ticks were decided.

    Then the ticks after `now` are decided again. Those that were fired have a row, so they are not
    fired again.
    """
    return decided_until > now + TURNED_BACK_SECONDS
