"""The logs that a run reads: of store directories, and of the brokers of a running cluster.

Receives directories and name servers; hands on, under each broker's name, what a run needs to know
of its log beforehand, and the readers of the records. A log that is not whole, and a broker that
cannot be reached, end the run with one line that names it, unless the run is to be a partial one.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from reliable_mq.errors import ConfigurationError, StoreError
from reliable_mq.reconcile.brokers import file_queues, file_store
from reliable_mq.reconcile.brokers.log_schema import BROKER, STORED_SCHEMA, columns_of
from reliable_mq.reconcile.brokers.spark_cluster import read_cluster
from reliable_mq.reconcile.brokers.spark_topic_source import TopicReader

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
    message that is there. `brokers`: whose logs are read. `missing`: broker -> why its log is not.
    `size`: bytes of all logs, about. `bounds`: broker -> where its log begins, and surely reaches
    to; of a cluster nobody knows.
    """

    stores: Mapping[str, str]
    cluster: str | None = None
    progress: Mapping[tuple[str, str, str], Mapping[int, int]] = field(default_factory=dict)
    begins: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    brokers: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def told(self) -> str:
        """Return where the logs are, for people."""
        named = (f"{name}={path}" if name else path for name, path in self.stores.items())
        return ", ".join((*named, *([f"cluster {self.cluster}"] if self.cluster else ())))


def open_logs(
    stores: Mapping[str, str], cluster: str | None = None, *, is_partial: bool = False
) -> BrokerLogs:
    """Look at every log.

    Args:
        stores: broker -> directory.
        cluster: "host:port;host:port" of name servers.
        is_partial: leave out, as `missing`, what cannot be read.

    Raises:
        ConfigurationError: no log is given, or one broker's twice.
        StoreError: a directory is no store, or is not whole.
        Unavailable, RemoteError, ProtocolError: a broker cannot be read.
    """
    if not stores and not cluster:
        raise ConfigurationError(
            "--store is missing: the broker's store directory; or --cluster: the name servers"
        )
    if cluster and UNNAMED in stores:
        raise ConfigurationError("beside --cluster a store needs its broker's name: NAME=DIR")
    found = [_of_store(name, path, is_partial) for name, path in stores.items()]
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


def _of_store(name: str, path: str, is_partial: bool) -> BrokerLogs:
    try:
        layout = _whole(path)
        progress = file_queues.read_progress(path)
    except StoreError as error:
        if is_partial and name:
            return BrokerLogs({}, missing={name: str(error)})
        raise
    return BrokerLogs(
        {name: path},
        progress={(name, *names): queues for names, queues in progress.items()},
        begins=_begins(name, layout.queue_begins),
        brokers=frozenset({name}),
        size=layout.sure_end - layout.log_begin,
        bounds={name: (layout.log_begin, layout.sure_end)},
    )


def _whole(path: str) -> file_store.StoreLayout:
    layout = file_store.read_layout(path)
    if layout.missing:
        raise StoreError(f"the store {path} is not whole: {'; '.join(layout.missing)}")
    return layout


def _of_cluster(name_servers: str, is_partial: bool) -> Iterator[BrokerLogs]:
    for ledger in read_cluster(name_servers, is_partial=is_partial):
        name = ledger.broker.name
        if ledger.missing is not None:
            yield BrokerLogs({}, missing={name: ledger.missing})
            continue
        firsts = {queue: begin for queue, (begin, _) in ledger.queues.items()}
        yield BrokerLogs(
            {},
            progress={(name, *names): queues for names, queues in ledger.progress.items()},
            begins=_begins(name, firsts),
            brokers=frozenset({name}),
            size=_RECORD_SIZE * sum(end - begin for begin, end in ledger.queues.values()),
        )


def _begins(
    name: str, firsts: Mapping[tuple[str, int], int]
) -> dict[tuple[str, str], dict[int, int]]:
    found: dict[tuple[str, str], dict[int, int]] = {}
    for (topic, queue_id), begin in firsts.items():
        found.setdefault((name, topic), {})[queue_id] = begin
    return found


def _together(
    found: list[BrokerLogs], stores: Mapping[str, str], cluster: str | None
) -> BrokerLogs:
    def union(name: str) -> dict[Any, Any]:
        return {key: value for each in found for key, value in getattr(each, name).items()}

    missing = union("missing")
    return BrokerLogs(
        {name: path for name, path in stores.items() if name not in missing},
        cluster,
        union("progress"),
        union("begins"),
        frozenset(name for each in found for name in each.brokers),
        missing,
        sum(each.size for each in found),
        union("bounds"),
    )


def cluster_reader(text: str, columns: Iterable[str]) -> TopicReader:
    """Return the reader of a run's cluster.

    Args:
        text: what `cluster_option` made.
        columns: those of records that are wanted; the broker's name comes with them.
    """
    asked = json.loads(text)
    schema = columns_of([BROKER, *columns], STORED_SCHEMA)
    return TopicReader(asked["name_servers"], (), schema, brokers=frozenset(asked["brokers"]))


def cluster_option(logs: BrokerLogs) -> str | None:
    """Return the cluster of a run as an option of a data source, None: there is none."""
    if not logs.cluster:
        return None
    brokers = sorted(logs.brokers - logs.stores.keys())
    return json.dumps({"name_servers": logs.cluster, "brokers": brokers})


def broker_of(batch: pa.RecordBatch) -> str:
    """Return whose records a batch of a cluster's reader has; they are all of one broker."""
    return str(batch.column(BROKER)[0])
