"""Select the partitions of a commit log that can contain the records of a query.

Log offsets decide exactly. Store times decide because a log is written in their order. A broker's
clock may be set back, so a partition is left out only if it is an hour away from the wanted time.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reliable_mq.reconcile.brokers.file_store import LogPartition
from reliable_mq.reconcile.brokers.log_scan import HEAD_SIZE_MAX, store_time_in
from reliable_mq.reconcile.source_filters import AT_LEAST, AT_MOST, EQUAL, LESS, MORE, Condition

CLOCK_MARGIN = timedelta(hours=1)
_PLACE, _TIME = "commit_log_offset", "store_time"


def can_hold(
    partitions: Sequence[LogPartition], conditions: Iterable[Condition]
) -> list[LogPartition]:
    """Return the partitions of a log that may have records for which all conditions hold.

    Args:
        partitions: all partitions of the log, in its order.
        conditions: conditions of the query. Only those on `commit_log_offset` and `store_time`
            count.
    """
    chosen = list(partitions)
    for each in conditions:
        if each.column == _PLACE and isinstance(each.value, int):
            chosen = [part for part in chosen if _has_place(part, each.operator, each.value)]
        elif each.column == _TIME and isinstance(each.value, datetime):
            chosen = _of_time(chosen, each.operator, each.value)
    return chosen


def _has_place(part: LogPartition, operator: str, place: int) -> bool:
    first, last = part.start, max(part.start, part.stop - 1)
    return {
        EQUAL: first <= place <= last,
        LESS: first < place,
        AT_MOST: first <= place,
        MORE: last > place,
        AT_LEAST: last >= place,
    }.get(operator, True)


def _of_time(parts: list[LogPartition], operator: str, time: datetime) -> list[LogPartition]:
    """Drop partitions that begin too late, and those whose following partition begins too early."""
    begins = [_first_time(part) for part in parts]
    chosen = []
    for part, begin, following in zip(parts, begins, [*begins[1:], None], strict=False):
        too_late = begin is not None and begin - CLOCK_MARGIN > time
        too_early = following is not None and following + CLOCK_MARGIN < time
        if not (
            (too_late and operator in (EQUAL, LESS, AT_MOST))
            or (too_early and operator in (EQUAL, MORE, AT_LEAST))
        ):
            chosen.append(part)
    return chosen


def _first_time(part: LogPartition) -> datetime | None:
    """Return the store time of the first record of a partition. None: no record begins there."""
    if not part.path:
        return None
    with suppress(OSError, OverflowError, ValueError), Path(part.path).open("rb") as file:
        file.seek(part.start - part.segment)
        time = store_time_in(file.read(HEAD_SIZE_MAX))
        return None if time is None else datetime.fromtimestamp(time / 1000, UTC)
    return None
