"""The logs that a run reads: from store directories, and from the brokers of a running cluster.

Receives directories and name servers. Returns, by broker name, the facts about each log that a run
needs before it reads, and the readers of the records. An incomplete log or an unreachable broker
ends the run with one line that names it. A partial run leaves it out instead.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from reliable_mq.errors import ConfigurationError, StoreError
from reliable_mq.reconcile.brokers import file_queues, file_store
from reliable_mq.reconcile.brokers.file_popped import read_in_flight
from reliable_mq.reconcile.brokers.log_schema import BROKER, STORED_SCHEMA, columns_of
from reliable_mq.reconcile.brokers.popped import not_beyond
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
"""The name for the one broker whose log was given without a name."""

_NAMED = re.compile(r"([\w.-]+)=(.+)")
_RECORD_SIZE = 1024  # about, in bytes: a cluster tells how many messages it has, not how large


def named_stores(texts: Iterable[str]) -> dict[str, str]:
    """Return the store directories of `DIR` and `NAME=DIR` texts, by broker name.

    Raises:
        ConfigurationError: when two have the same name, or two have no name.
    """
    stores: dict[str, str] = {}
    for text in texts:
        found = _NAMED.fullmatch(text)
        name, path = found.groups() if found else (UNNAMED, text)
        if name in stores:
            which = f"two stores of the broker {name}" if name else "two stores without a name"
            raise ConfigurationError(
                f"--store gives {which}: write NAME=DIR, each broker once, with the names in stubs"
                " and consume logs"
            )
        stores[name] = path
    return stores


def named_slaves(texts: Iterable[str], stores: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the broker's name and the slave's store directory of `DIR` and `NAME=DIR` texts.

    Args:
        texts: slaves. One without a name is a slave of the only store.
        stores: broker -> store directory of the master.

    Raises:
        ConfigurationError: when the master's store is not given, or is the slave's, too.
    """
    slaves: list[tuple[str, str]] = []
    for text in texts:
        found = _NAMED.fullmatch(text)
        name, path = found.groups() if found else (UNNAMED, text)
        if not found and len(stores) == 1:
            name = next(iter(stores))
        if name not in stores:
            which = f"NAME={path}, with the name of its master" if not found else f"--store {name}="
            raise ConfigurationError(f"--slave-store {text}: its master is not given: give {which}")
        if Path(path).resolve() == Path(stores[name]).resolve():
            raise ConfigurationError(f"--slave-store {text}: this is the store of its master")
        slaves.append((name, path))
    return slaves


@dataclass(frozen=True)
class BrokerLogs:
    """The facts about the logs of a run, before they are read.

    Attributes:
        stores: broker -> store directory.
        cluster: name servers. None: there is no cluster.
        progress: (broker, group, topic) -> queue id -> committed offset.
        begins: (broker, topic) -> queue id -> the first message that still exists.
        brokers: the brokers whose logs are read.
        missing: broker -> why its log is not read.
        size: approximate bytes of all logs.
        bounds: broker with a store -> (begin of its log, end up to which the queues know it).
        clocks: the measured clocks of brokers.
        addresses: broker of the cluster -> its address.
        queues: broker of the cluster -> the offset ranges of its queues (instead of `bounds`).
        queue_ranges: the ranges of `queues` that are read. None: all.
        oldest: broker -> store time of the first record of its log, if it is known.
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

    def description(self) -> str:
        """Return the places of the logs as a text for people."""
        named = (f"{name}={path}" if name else path for name, path in self.stores.items())
        return ", ".join((*named, *([f"cluster {self.cluster}"] if self.cluster else ())))


def open_logs(
    stores: Mapping[str, str],
    cluster: str | None = None,
    *,
    is_partial: bool = False,
    now: datetime | None = None,
) -> BrokerLogs:
    """Collect the facts about every log.

    Args:
        stores: broker -> store directory.
        cluster: name servers, "host:port;host:port". Default None.
        is_partial: put logs that cannot be read into `missing`, and raise no error.
        now: the time of this machine's clock, to check the clock of a store's broker. Files show
            only a clock that is ahead. None: do not check.

    Raises:
        ConfigurationError: no log is given, one broker is given twice, or a namespace is set.
        StoreError: a directory is no store, or is not complete.
        Unavailable, RemoteError, ProtocolError: a broker cannot be read.
    """
    if not stores and not cluster:
        raise ConfigurationError(
            "--store is missing: give a broker's store directory, or --cluster with name servers"
        )
    refuse_namespace()
    if cluster and UNNAMED in stores:
        raise ConfigurationError("with --cluster, a store needs its broker's name: NAME=DIR")
    found = [_of_store(name, path, is_partial, now) for name, path in stores.items()]
    if cluster:
        found += _of_cluster(cluster, is_partial)
    names = [name for each in found for name in (*each.brokers, *each.missing)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"the broker {twice[0]} is given twice, by --cluster and by --store: leave out one"
        )
    return _union_of_logs(found, stores, cluster)


def check_named_brokers(
    logs: BrokerLogs, named: Collection[str], *, claimed: str | None, is_partial: bool
) -> tuple[BrokerLogs, str | None]:
    """Check that the logs of all brokers are given that stubs and consume logs name.

    The name servers soon forget a broker that is down, but the tables still name it. If a message
    were judged by the log of another broker, it would be called lost, and a repair would send it
    again.

    Args:
        logs: the logs that were found.
        named: the brokers that the tables name.
        claimed: the broker name that the person gave for the store without a name.
        is_partial: put brokers without a log into `missing`, and raise no error.

    Returns:
        The logs, and the name of the broker of the store without a name.

    Raises:
        ConfigurationError: when a log is missing.
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
        raise ConfigurationError("--broker-name is for one --store DIR; else give --store NAME=DIR")
    if unknown and not is_partial:
        where = "is not in the cluster now" if logs.cluster else "was not given by --store NAME=DIR"
        raise ConfigurationError(f"{says} whose log {where}: its messages cannot be judged")
    why = "it is not in the cluster now, or no store of it was given"
    return replace(logs, missing={**logs.missing, **dict.fromkeys(unknown, why)}), None


_OTHER_WINDOW = "--since and --until choose a time in which only the store's broker was used"


def _of_store(name: str, path: str, is_partial: bool, now: datetime | None) -> BrokerLogs:
    try:
        # Read the offsets first, then the log. A group may pass more messages meanwhile, beyond the
        # end of the log that is read. With this order they do not count as passed.
        progress = file_queues.read_progress(path)
        layout = _whole(path)
    except StoreError as error:
        if is_partial and name:
            return BrokerLogs({}, missing={name: str(error)})
        raise
    newest_ms = layout.newest_ms or 0
    now_ms = newest_ms if now is None else int(now.timestamp() * 1000)
    progress = not_beyond(progress, read_in_flight(path, now_ms, newest_ms))
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
    """Return the clock of a store's broker, if this machine's clock is behind its newest record."""
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
    """Return the approximate size in bytes of the messages of queues."""
    return _RECORD_SIZE * sum(end - begin for begin, end in queues.values())


def _union_of_logs(
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
        text: the result of `cluster_option`.
        columns: the wanted columns of records. The broker's name is added.
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
    """Return the cluster of a run as an option of a data source. None: there is no cluster."""
    if not logs.cluster:
        return None
    brokers = sorted(logs.brokers - logs.stores.keys())
    ranges = logs.queue_ranges
    told = None if ranges is None else {name: by_topic(each) for name, each in ranges.items()}
    return json.dumps({"name_servers": logs.cluster, "brokers": brokers, "ranges": told})


def broker_of(batch: pa.RecordBatch) -> str:
    """Return the broker of a batch of a cluster's reader. All its records are of one broker."""
    return str(batch.column(BROKER)[0])
