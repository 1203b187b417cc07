"""The figures of replication for the metrics of a broker: of a master, or of a slave.

Receives what a broker knows of its slaves or of its master. Returns samples.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from reliable_mq.replication.ha_status import MasterState, SlaveState, is_in_sync
from reliable_mq.telemetry.families import Sample


class MasterLog(NamedTuple):
    """The log of a master, and what it asks of its slaves.

    Attributes:
        end: where the log ends.
        gap_max: a slave that lacks so many bytes does not keep up.
        needed: the slaves that must have a message before it is acknowledged; 0: none.
        store_time_ms: returns when the first record at or after an offset was stored; None: there
            is none.
    """

    end: int
    gap_max: int
    needed: int
    store_time_ms: Callable[[int], int | None]


def figures_of_master(
    slaves: Sequence[SlaveState], log: MasterLog, now: float, now_ms: int
) -> Iterator[Sample]:
    """Yield the figures of a master. `now`: seconds of the monotonic clock of `SlaveState`."""
    in_sync = sum(is_in_sync(slave, log.end, log.gap_max) for slave in slaves)
    yield _sample("connected_slaves", len(slaves))
    yield _sample("in_sync_slaves", in_sync)
    yield _sample("needed_slaves", log.needed)
    for slave in slaves:
        labels = (slave.address,)
        lacks = max(0, log.end - slave.acknowledged)
        stored_ms = log.store_time_ms(slave.acknowledged) if lacks else None
        age = max(0, now_ms - stored_ms) / 1000 if stored_ms is not None else 0.0
        yield _sample("slave_lag_bytes", lacks, labels)
        yield _sample("slave_lag_seconds", age, labels)
        yield _sample("slave_report_age_seconds", max(0.0, now - slave.heard), labels)
        yield _sample("slave_sent_bytes_total", slave.rate.total, labels)


class TablesState:
    """When a slave has taken over its master's tables last, and what went wrong since.

    Attributes:
        taken_ms: when all of them were taken over last; 0: never.
        failure: why the last attempt has failed; "": it has not.
    """

    def __init__(self) -> None:
        self.taken_ms = 0
        self.failure = ""

    def taken(self, now_ms: int) -> None:
        """Note that all tables were taken over."""
        self.taken_ms, self.failure = now_ms, ""

    def age_seconds(self, now_ms: int, started_ms: int) -> float:
        """Return how old the tables are; of those that never came, since the start."""
        return max(0, now_ms - (self.taken_ms or started_ms)) / 1000


class SlaveLag:
    """How far a slave is behind its master, as far as it knows.

    It learns the master's end from what arrives, and from the master's answers in between.
    """

    def __init__(self) -> None:
        self._behind_since_ms = 0  # 0: it lacks nothing

    def lacks(self, master: MasterState, stored: int) -> int:
        """Return the bytes that the slave lacks; `stored`: the end of what it has stored."""
        return max(0, master.end - stored)

    def seconds(self, master: MasterState, stored: int, now_ms: int) -> float:
        """Return the age of the oldest message that it lacks, at most; 0: it lacks none.

        That message is younger than the newest one that it has. It was stored after the slave was
        last seen with everything.
        """
        if not self.lacks(master, stored):
            self._behind_since_ms = 0
            return 0.0
        self._behind_since_ms = self._behind_since_ms or now_ms
        since_ms = max(self._behind_since_ms, master.newest_ms)
        return max(0, now_ms - since_ms) / 1000


def figures_of_slave(
    master: MasterState,
    lag: SlaveLag,
    stored: int,
    tables_age: float,
    now_ms: int,
    *,
    stands_in: bool = False,
    delivered: int = 0,
) -> Iterator[Sample]:
    """Yield the figures of a slave.

    Args:
        master: what it knows of its master.
        lag: how far it is behind.
        stored: the end of what it has stored.
        tables_age: of its tables, in seconds.
        now_ms: the time.
        stands_in: whether it stands in for its master.
        delivered: messages that it has delivered to other masters.
    """
    reported_ms = master.reported_ms or now_ms
    yield _sample("master_connected", bool(master.address))
    yield _sample("behind_master_bytes", lag.lacks(master, stored))
    yield _sample("behind_master_seconds", lag.seconds(master, stored, now_ms))
    yield _sample("master_report_age_seconds", max(0, now_ms - reported_ms) / 1000)
    yield _sample("master_tables_age_seconds", tables_age)
    yield _sample("master_received_bytes_total", master.rate.total)
    yield _sample("stands_in", stands_in)
    yield _sample("delivered_elsewhere_messages_total", delivered)


def _sample(name: str, value: float, labels: tuple[str, ...] = ()) -> Sample:
    return Sample(f"reliable_mq_broker_{name}", value, labels)
