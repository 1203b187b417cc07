"""Finds which groups have a message in flight by the message, from the notes in a broker's log.

Receives the places of one message. Asks running brokers by pulls, or reads store directories, as
reconciliation does.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from reliable_mq.cli.database_options import OpenedDatabase
from reliable_mq.cli.found_messages import why_not_asked
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, ReliableMQError, StoreError
from reliable_mq.escalate.timeline import MessageHistory, TimelineEntry
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.plain_text import times
from reliable_mq.settings import EMBEDDED
from reliable_mq.wire.addresses import split_addresses
from reliable_mq.wire.pop_handle import popped_topic

TIMEOUT_SECONDS = 10.0
NOTES_MAX = 100_000
_DAYS = timedelta(days=3)  # no broker lets a message be invisible for longer
_NAMED = re.compile(r"(?:([\w.-]+)=)?(.+)", re.DOTALL)
_EPOCH = datetime.fromtimestamp(0, UTC)


class StoredAt(NamedTuple):
    """Where a message lies, by the names of brokers, and how many attempts at it have failed."""

    broker: str
    topic: str
    queue_id: int
    offset: int
    failed: int


class HandedOut(NamedTuple):
    """A message that a broker handed out to a group, and that its group has or had in flight.

    `changes`: how often the time was changed since. `until`: when it comes back, or would have.
    `broker` "": a store without a name.
    """

    group: str
    topic: str
    broker: str
    queue_id: int
    offset: int
    attempt: int
    popped: datetime
    until: datetime
    changes: int
    is_acknowledged: bool

    def state(self, now: datetime) -> str:
        """Return what has become of it, as text."""
        until = self.until.isoformat(timespec="milliseconds")
        if self.is_acknowledged:
            return "acknowledged"
        if now < self.until:
            return f"in flight, invisible until {until}"
        return f"not acknowledged until {until}: it comes back"


def pops_of_message(
    message_id: str,
    history: MessageHistory,
    records: Sequence[ReceivedMessage],
    stores: Sequence[str],
    found: OpenedDatabase,
) -> tuple[list[HandedOut], list[str]]:
    """Return what was handed out, and what is not known about it, as texts.

    Args:
        message_id: the message.
        history: what the databases know.
        records: the brokers' records of it.
        stores: read these instead of asking brokers.
        found: knows the name servers, or the store of a broker in the application's process.

    Raises:
        StoreError: one of `stores` is no store.
        ConfigurationError: the extra for reading stores is not installed.
    """
    client = found.client
    places, since = places_of(history, records, client.namespace), since_of(history, records)
    if stores:
        return stored_pops(message_id, places, since, stores, client.namespace), []
    if found.broker.startswith(EMBEDDED):
        store = found.broker.removeprefix(EMBEDDED)
        try:
            return stored_pops(message_id, places, since, [store], client.namespace), []
        except (StoreError, ConfigurationError) as error:
            return [], [f"what is in flight by the message was not read: {error}"]
    if why_not_asked(found.broker) or not places:
        return [], []
    return pulled_pops(places, since, found.broker, client)


def places_of(
    history: MessageHistory, records: Sequence[ReceivedMessage], namespace: str
) -> list[StoredAt]:
    """Return the places of a message from which consumers may have popped it.

    Args:
        history: its stub says where it was stored.
        records: its records at the brokers.
        namespace: that of the application.
    """
    names = Namespace(namespace)
    found = {
        (each.queue.broker_name, each.queue.topic, each.queue.queue_id, each.queue_offset): (
            each.reconsume_times
        )
        for each in records
        if not each.queue.topic.startswith(DEAD_LETTER_PREFIX)
    }
    stub = history.stub
    if stub is not None and stub["broker_name"] is not None and stub["offset"] is not None:
        place = stub["broker_name"], stub["topic"], stub["queue_id"], stub["offset"]
        found.setdefault(place, 0)
    return [
        StoredAt(broker, names.full_name(topic), queue_id, offset, failed)
        for (broker, topic, queue_id, offset), failed in found.items()
    ]


def pulled_pops(
    places: Sequence[StoredAt], since: datetime, name_servers: str, client: ClientSettings
) -> tuple[list[HandedOut], list[str]]:
    """Return what running brokers have handed out, and what could not be asked, as texts.

    Args:
        places: those of the message.
        since: nobody had the message before.
        name_servers: "host:port;host:port".
        client: the account and the TLS settings.
    """
    # Imported late: only this needs them.
    from reliable_mq.reconcile.brokers import spark_access, spark_cluster  # noqa: PLC0415

    access = spark_access.ClusterAccess(client.credentials, client.tls)
    found: list[HandedOut] = []
    unasked: list[str] = []
    wanted = {each.broker for each in places}
    try:
        servers = split_addresses(name_servers)
        for broker in spark_cluster.brokers_of(servers, TIMEOUT_SECONDS, access):
            if broker.name in wanted:
                here = [each for each in places if each.broker == broker.name]
                with access.link(broker.address, TIMEOUT_SECONDS) as link:
                    pops, why = _pulled(link.call, broker.name, broker.cluster, here, since)
                found += pops
                unasked += [why] if why else []
    except ReliableMQError as error:
        unasked.append(f"what is in flight by the message could not be asked: {error}")
    return _own(found, client.namespace), unasked


def _pulled(
    ask: Any, broker: str, cluster: str, places: Sequence[StoredAt], since: datetime
) -> tuple[list[HandedOut], str]:
    from reliable_mq.reconcile.brokers import popped, popped_pulls  # noqa: PLC0415 - as above

    notes = popped_pulls.pulled_notes(ask, cluster, _ms(since), most=NOTES_MAX)
    failed = {(each.topic, each.queue_id, each.offset): each.failed for each in places}
    pops = popped.pops_of(notes.notes, lambda *place: place in failed)
    found = _grouped(broker, [(pop, failed[pop.topic, pop.queue_id, pop.offset]) for pop in pops])
    if not found and (why := popped_pulls.why_unknown(ask)):
        return found, f"what is in flight by the message at {broker} is not known: {why}"
    if not notes.is_whole:
        return found, f"of {broker}, only the newest {NOTES_MAX:,} notes on popped messages count"
    return found, ""


def stored_pops(
    message_id: str,
    places: Sequence[StoredAt],
    since: datetime,
    stores: Sequence[str],
    namespace: str = "",
) -> list[HandedOut]:
    """Return what the logs in store directories say that a message was handed out.

    Args:
        message_id: the message.
        places: where it lies, as far as this is known.
        since: nobody had the message before.
        stores: directories, each perhaps as NAME=DIR.
        namespace: that of the application.

    Raises:
        StoreError: a directory is no store.
        ConfigurationError: the extra for reading stores is not installed.
    """
    from reliable_mq.extras import extra_of  # noqa: PLC0415 - only this needs them

    with extra_of("spark"):
        from reliable_mq.reconcile.brokers import file_popped, file_store  # noqa: PLC0415

    known = {(each.topic, each.queue_id, each.offset) for each in places}
    topics = {each.topic for each in places}

    def is_likely(topic: str, queue_id: int, offset: int) -> bool:
        if topic in topics:
            return (topic, queue_id, offset) in known
        return not topics or topic.startswith(RETRY_PREFIX)

    found: list[HandedOut] = []
    for text in stores:
        parts = _NAMED.fullmatch(text)
        name, path = (parts[1] or "", parts[2]) if parts else ("", text)
        file_store.read_layout(path)  # raises if it is no store
        found += _grouped(name, file_popped.read_pops(path, message_id, is_likely, _ms(since)))
    return _own(found, namespace)


def since_of(history: MessageHistory, records: Sequence[ReceivedMessage]) -> datetime:
    """Return since when somebody may have the message in flight."""
    moments = [_EPOCH + timedelta(milliseconds=each.store_time_ms) for each in records]
    if history.stub is not None:
        moments.append(history.stub["create_date"])
    first = min(moments, default=_EPOCH) - timedelta(minutes=1)  # clocks differ
    return max(first, datetime.now(UTC) - _DAYS)


def entries_of(pops: Sequence[HandedOut], now: datetime) -> Iterator[TimelineEntry]:
    """Yield the entries of a timeline."""
    for pop in pops:
        changed = f", its time was changed {times(pop.changes)}" if pop.changes else ""
        what = f"handed out to {pop.group} by the message, attempt {pop.attempt}{changed}: "
        yield TimelineEntry(pop.popped, "broker", what + pop.state(now))


def flying(pops: Sequence[HandedOut], now: datetime) -> list[str]:
    """Return the groups that have the message in flight, sorted."""
    return sorted({pop.group for pop in pops if not pop.is_acknowledged and now < pop.until})


def as_rows(pops: Sequence[HandedOut]) -> list[Mapping[str, Any]]:
    """Return the values for JSON."""
    return [pop._asdict() for pop in pops]


def _grouped(broker: str, pops: Sequence[tuple[Any, int]]) -> list[HandedOut]:
    """Return one entry for each group and place: a change of the time is a hand-out, too."""
    by_place = defaultdict(list)
    for pop, failed in pops:
        by_place[pop.group, pop.topic, pop.queue_id, pop.offset].append((pop, failed))
    return [
        HandedOut(
            group=group,
            topic=topic,
            broker=broker,
            queue_id=queue_id,
            offset=offset,
            attempt=chain[0][1] + 1,
            popped=_time(chain[0][0].popped_ms),
            until=_time(chain[-1][0].back_ms),
            changes=len(chain) - 1,
            is_acknowledged=chain[-1][0].is_ended,
        )
        for (group, topic, queue_id, offset), chain in by_place.items()
    ]


def _own(found: Sequence[HandedOut], namespace: str) -> list[HandedOut]:
    """Return entries with the application's names, and of messages the topic they were sent to."""
    names = Namespace(namespace)
    return [
        pop._replace(
            group=names.own_name(pop.group),
            topic=names.own_name(popped_topic(pop.topic, pop.group)),
        )
        for pop in found
    ]


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
