"""Read all rows of a few messages from the tables, by id, as events. Increments use it."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from reliable_mq.reconcile.databases import sql_arrow
from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB, TOLD
from reliable_mq.reconcile.judgement.event_rows import EVENT_ROWS, event_rows
from reliable_mq.reconcile.judgement.events import unpacked_ids
from reliable_mq.reconcile.judgement.ledger_events import (
    LOG_COLUMNS,
    NOTICE_COLUMNS,
    STUB_COLUMNS,
    log_events,
    notice_events,
    stub_events,
)
from reliable_mq.reconcile.source_filters import AMONG, Condition

_IDS_PER_STATEMENT = 500

Adapter = Callable[[pa.RecordBatch], pa.RecordBatch]


def tables_events(
    urls: Sequence[str], prefix: str, ids: pa.Array, groups_with_notices: Sequence[str]
) -> pa.Table:
    """Return the stubs, consume logs and notices of messages, as `EVENT_ROWS`.

    Args:
        urls: the URLs of the databases.
        prefix: the prefix of the table names.
        ids: packed message ids.
        groups_with_notices: the groups whose notices are read, because their consume logs are not.
    """
    texts = unpacked_ids(ids).to_pylist()
    batches = [
        event_rows(events)
        for at in range(0, len(texts), _IDS_PER_STATEMENT)
        for url in urls
        for events in _read(url, prefix, texts[at : at + _IDS_PER_STATEMENT], groups_with_notices)
    ]
    return pa.Table.from_batches(batches, EVENT_ROWS)


def _read(
    url: str, prefix: str, ids: Sequence[str], groups_with_notices: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    chosen = Condition("message_id", AMONG, tuple(ids))
    asked: list[tuple[str, Sequence[str], Adapter, tuple[Condition, ...]]] = [
        (STUB, STUB_COLUMNS, stub_events, (chosen,)),
        (CONSUME_LOG, LOG_COLUMNS, log_events, (chosen,)),
    ]
    if groups_with_notices:
        of_groups = Condition("consumer_group", AMONG, tuple(groups_with_notices))
        asked.append((TOLD, NOTICE_COLUMNS, notice_events, (chosen, of_groups)))
    for name, columns, events_of, conditions in asked:
        wanted = sql_arrow.LedgerQuery(name, prefix, tuple(columns), conditions=conditions)
        for batch in sql_arrow.read(url, wanted):
            yield events_of(batch)
