"""Add details to findings: values from the tables that help a person but decide no verdict.

Receives verdicts. Returns them with the columns of `judge.DETAILS` filled in for the findings. If a
row was removed since it was judged, its details stay empty.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from reliable_mq.reconcile.databases.ledger_columns import CONSUME_LOG, STUB, table_of
from reliable_mq.reconcile.databases.sql_connection import connected
from reliable_mq.reconcile.judgement.judge import DETAILS, VERDICTS

_IDS_PER_STATEMENT = 500


def with_details(verdicts: pa.Table, urls: Sequence[str], prefix: str) -> pa.Table:
    """Return verdicts with details for the findings, from the tables at `urls`."""
    findings = np.flatnonzero(verdicts["finding"].to_numpy())
    if len(findings) == 0:
        return verdicts
    chosen = verdicts.select(["message_id", "consumer_group"]).take(pa.array(findings))
    keys = list(zip(*(column.to_pylist() for column in chosen.columns), strict=True))
    stubs: dict[str, Sequence[Any]] = {}
    owners: dict[tuple[str, str], str] = {}
    for url in urls:
        _read_details(url, prefix, sorted({key[0] for key in keys}), stubs, owners)
    names = ("message_key", "ordering_key", "stub_note", "stub_resend_time", "stub_given_up_by")
    nothing = (None,) * len(names)
    found = {
        name: [stubs.get(identity, nothing)[at] for identity, _ in keys]
        for at, name in enumerate(names)
    }
    found["log_owner"] = [owners.get(key) for key in keys]
    place = np.full(verdicts.num_rows, -1)
    place[findings] = np.arange(len(findings))
    places = pa.array(place, mask=place < 0)
    for name, kind in DETAILS.items():
        at = VERDICTS.get_field_index(name)
        verdicts = verdicts.set_column(
            at, VERDICTS.field(at), pa.array(found[name], kind).take(places)
        )
    return verdicts


def _read_details(
    url: str,
    prefix: str,
    ids: Sequence[str],
    stubs: dict[str, Sequence[Any]],
    owners: dict[tuple[str, str], str],
) -> None:
    stub, log = table_of(STUB, prefix).c, table_of(CONSUME_LOG, prefix).c
    of_stub = (stub.message_key, stub.ordering_key, stub.note, stub.resend_time, stub.given_up_by)
    with connected(url) as connection:
        for some in _chunks(ids):
            query = select(stub.message_id, *of_stub).where(stub.message_id.in_(some))
            for identity, *values in connection.execute(query):
                stubs.setdefault(identity, values)
            held = select(log.message_id, log.consumer_group, log.owner)
            held = held.where(log.message_id.in_(some), log.owner.is_not(None))
            for identity, group, owner in connection.execute(held):
                owners.setdefault((identity, group), owner)


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for at in range(0, len(ids), _IDS_PER_STATEMENT):
        yield ids[at : at + _IDS_PER_STATEMENT]
