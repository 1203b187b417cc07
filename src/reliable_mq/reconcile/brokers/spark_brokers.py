"""The logs that a run reads: of store directories, and of the brokers of a running cluster.

Receives directories and name servers; hands on, under each broker's name, what a run needs to know
of its log beforehand, and the readers of the records. A log that is not whole, and a broker that
cannot be reached, end the run with one line that names it, unless the run is to be a partial one.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from reliable_mq.errors import ConfigurationError, StoreError
from reliable_mq.reconcile.brokers import file_queues, file_store
from reliable_mq.reconcile.brokers.log_schema import BROKER, STORED_SCHEMA, columns_of
from reliable_mq.reconcile.brokers.queue_ranges import QueueRanges, by_queue, by_topic
from reliable_mq.reconcile.brokers.spark_access import OPEN, access_here, refuse_namespace
from reliable_mq.reconcile.brokers.spark_begins import (
    MovingBegins,
    QueueBegins,
    begins_of,
    oldest_of,
)
from reliable_mq.reconcile.brokers.spark_cluster import read_cluster
from reliable_mq.reconcile.brokers.spark_topic_source import TopicReader
from reliable_mq.reconcile.clocks import LedgerClock

UNNAMED = ""
"""Stands for the name of the one broker whose log was given without a name."""

_NAMED = re.compile(r"([\w.-]+)=(.+)")
_RECORD_SIZE = 1024  # about, in bytes: a cluster tells how many messages it has, not how large


def named_stores(texts: Iterable[str]) -> dict[str, str]:
    """Return the store directories in `DIR` and `NAME=DIR`, by their brokers' names.

    Raises:
        ConfigurationError: when two have one name, or two have none.
    """
    stores: dict[str, str] = {}
    for text in texts:
        found = _NAMED.fullmatch(text)
        name, path = found.groups() if found else (UNNAMED, text)
        if name in stores:
            which = f"two stores of the broker {name}" if name else "two stores without a name"
            raise ConfigurationError(
                f"--store gives {which}: say NAME=DIR, each broker once, by the names that stubs"
                " and consume logs have for them"
            )
        stores[name] = path
    return stores


@dataclass(frozen=True)
class BrokerLogs:
    """What is known of the logs of a run before they are read.

    `stores`: broker -> directory. `cluster`: name servers, or None. `progress`: (broker, group,
    topic) -> queue id -> committed offset. `begins`: (broker, topic) -> queue id -> the first
    message that is there. `oldest`: broker -> when the first record of its log was stored, if it
    tells. `brokers`: whose logs are read. `missing`: broker -> why its log is not.
    `size`: bytes of all logs, about. `bounds`: broker -> where its log begins, and surely reaches
    to; of a cluster nobody knows, so `queues` stands for it: broker -> what its queues hold.
    `queue_ranges`: what of them is read, None: all. `addresses`: where the brokers of the cluster
    are. `clocks`: those of the brokers that tell.
    """

    stores: Mapping[str, str]
    cluster: str | None = None
    progress: Mapping[tuple[str, str, str], Mapping[int, int]] = field(default_factory=dict)
    begins: QueueBegins = field(default_factory=dict)
    brokers: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    clocks: tuple[LedgerClock, ...] = ()
    addresses: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, QueueRanges] = field(default_factory=dict)
    queue_ranges: Mapping[str, QueueRanges] | None = None
    oldest: Mapping[str, datetime] = field(default_factory=dict)

    def told(self) -> str:
        """Return where the logs are, for people."""
        named = (f"{name}={path}" if name else path for name, path in self.stores.items())
        return ", ".join((*named, *([f"cluster {self.cluster}"] if self.cluster else ())))


def open_logs(
    stores: Mapping[str, str],
    cluster: str | None = None,
    *,
    is_partial: bool = False,
    now: datetime | None = None,
) -> BrokerLogs:
    """Look at every log.

    Args:
        stores: broker -> directory.
        cluster: "host:port;host:port" of name servers.
        is_partial: leave out, as `missing`, what cannot be read.
        now: by this machine's clock, with which that of a store's broker is compared; None: it is
            not. Files tell only of a clock that is ahead.

    Raises:
        ConfigurationError: no log is given, or one broker's twice, or a namespace.
        StoreError: a directory is no store, or is not whole.
        Unavailable, RemoteError, ProtocolError: a broker cannot be read.
    """
    if not stores and not cluster:
        raise ConfigurationError(
            "--store is missing: the broker's store directory; or --cluster: the name servers"
        )
    refuse_namespace()
    if cluster and UNNAMED in stores:
        raise ConfigurationError("beside --cluster a store needs its broker's name: NAME=DIR")
    found = [_of_store(name, path, is_partial, now) for name, path in stores.items()]
    if cluster:
        found += _of_cluster(cluster, is_partial)
    names = [name for each in found for name in (*each.brokers, *each.missing)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"the broker {twice[0]} is in the cluster, and given by --store")
    return _together(found, stores, cluster)


def hold_against(
    logs: BrokerLogs, named: Collection[str], *, claimed: str | None, is_partial: bool
) -> tuple[BrokerLogs, str | None]:
    """Return the logs, if those of all brokers are there that stubs and consume logs name.

    A broker that is down is soon forgotten by the name servers: nobody but the tables knows of it.
    What one broker holds, another one's log cannot know: judged by the wrong log, a message would
    be called lost, and be sent again by a repair.

    Args:
        logs: what was found.
        named: the brokers that the tables name.
        claimed: who the store without a name is said to be of.
        is_partial: give those whose log is not there as `missing`.

    Returns:
        The logs, and the name of the broker whose store was given without one.

    Raises:
        ConfigurationError: when one is not there.
    """
    unknown = sorted(set(named) - logs.brokers - logs.missing.keys())
    told = f"broker{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
    says = f"stubs and consume logs name the {told},"
    if UNNAMED in logs.brokers:
        if claimed and unknown and unknown != [claimed]:
            raise ConfigurationError(
                f"{says} but --broker-name says that --store is the log of {claimed}; it cannot"
                f" judge messages of another broker. {_OTHER_WINDOW}"
            )
        if len(unknown) > 1:
            raise ConfigurationError(
                f"{says} but --store is the log of one of them; it cannot judge messages of"
                f" another broker: give each --store as NAME=DIR. {_OTHER_WINDOW}"
            )
        return logs, next(iter(unknown), claimed)
    if claimed:
        raise ConfigurationError("--broker-name is for one --store DIR; else say --store NAME=DIR")
    if unknown and not is_partial:
        where = "is not in the cluster now" if logs.cluster else "was not given by --store NAME=DIR"
        raise ConfigurationError(f"{says} whose log {where}: its messages cannot be judged")
    why = "it is not in the cluster now, or no store of it was given"
    return replace(logs, missing={**logs.missing, **dict.fromkeys(unknown, why)}), None


_OTHER_WINDOW = "--since and --until choose a time in which only the store's broker was used"


def _of_store(name: str, path: str, is_partial: bool, now: datetime | None) -> BrokerLogs:
    try:
        # In this order: what a group passes from here on, and what becomes of it, may lie behind
        # the end of what is read, but is not taken for passed.
        progress = file_queues.read_progress(path)
        layout = _whole(path)
    except StoreError as error:
        if is_partial and name:
            return BrokerLogs({}, missing={name: str(error)})
        raise
    return BrokerLogs(
        {name: path},
        progress={(name, *names): queues for names, queues in progress.items()},
        begins=begins_of(name, layout.queue_begins),
        brokers=frozenset({name}),
        size=layout.sure_end - layout.log_begin,
        bounds={name: (layout.log_begin, layout.sure_end)},
        clocks=_clock_of_store(path, layout.newest_ms, now),
        oldest=oldest_of(name, layout.oldest_ms),
    )


def _clock_of_store(
    path: str, newest_ms: int | None, now: datetime | None
) -> tuple[LedgerClock, ...]:
    """Return the clock of a store's broker, if its newest record is from this machine's future."""
    if newest_ms is None or now is None or newest_ms / 1000 <= now.timestamp():
        return ()
    whose = f"the broker of {path}, by the newest record in its log,"
    return (LedgerClock(whose, newest_ms / 1000 - now.timestamp()),)


def _whole(path: str) -> file_store.StoreLayout:
    layout = file_store.read_layout(path)
    if layout.missing:
        raise StoreError(f"the store {path} is not whole: {'; '.join(layout.missing)}")
    return layout


def _of_cluster(name_servers: str, is_partial: bool) -> Iterator[BrokerLogs]:
    for ledger in read_cluster(name_servers, is_partial=is_partial, is_whole=True):
        name = ledger.broker.name
        if ledger.missing is not None:
            yield BrokerLogs({}, missing={name: ledger.missing})
            continue
        firsts = {queue: begin for queue, (begin, _) in ledger.queues.items()}
        yield BrokerLogs(
            {},
            progress={(name, *names): queues for names, queues in ledger.progress.items()},
            begins=begins_of(name, firsts),
            brokers=frozenset({name}),
            size=pulled_size(ledger.queues),
            clocks=(ledger.clock,) if ledger.clock is not None else (),
            addresses={name: ledger.broker.address},
            queues={name: ledger.queues},
            oldest=oldest_of(name, ledger.oldest_ms),
        )


def pulled_size(queues: QueueRanges) -> int:
    """Return how many bytes the messages of queues have, about."""
    return _RECORD_SIZE * sum(end - begin for begin, end in queues.values())


def _together(
    found: list[BrokerLogs], stores: Mapping[str, str], cluster: str | None
) -> BrokerLogs:
    def union(name: str) -> dict[Any, Any]:
        return {key: value for each in found for key, value in getattr(each, name).items()}

    missing = union("missing")
    there = {name: path for name, path in stores.items() if name not in missing}
    addresses = union("addresses")
    return BrokerLogs(
        there,
        cluster,
        union("progress"),
        MovingBegins(union("begins"), there, addresses, access_here() if cluster else OPEN),
        frozenset(name for each in found for name in each.brokers),
        missing,
        sum(each.size for each in found),
        union("bounds"),
        tuple(clock for each in found for clock in each.clocks),
        addresses,
        union("queues"),
        oldest=union("oldest"),
    )


def cluster_reader(text: str, columns: Iterable[str]) -> TopicReader:
    """Return the reader of a run's cluster.

    Args:
        text: what `cluster_option` made.
        columns: those of records that are wanted; the broker's name comes with them.
    """
    asked = json.loads(text)
    schema = columns_of([BROKER, *columns], STORED_SCHEMA)
    ranges = asked["ranges"]
    return TopicReader(
        asked["name_servers"],
        (),
        schema,
        brokers=frozenset(asked["brokers"]),
        ranges=None if ranges is None else {name: by_queue(each) for name, each in ranges.items()},
    )


def cluster_option(logs: BrokerLogs) -> str | None:
    """Return the cluster of a run as an option of a data source, None: there is none."""
    if not logs.cluster:
        return None
    brokers = sorted(logs.brokers - logs.stores.keys())
    ranges = logs.queue_ranges
    told = None if ranges is None else {name: by_topic(each) for name, each in ranges.items()}
    return json.dumps({"name_servers": logs.cluster, "brokers": brokers, "ranges": told})


def broker_of(batch: pa.RecordBatch) -> str:
    """Return whose records a batch of a cluster's reader has; they are all of one broker."""
    return str(batch.column(BROKER)[0])
