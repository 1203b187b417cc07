"""Carries a plan out on the message stub table, audited, while traffic goes on.

Every statement names the state in which the run saw the stub; a stub that moved since is left
alone and told so. Doing the same plan twice changes nothing the second time.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, MetaData, Table, and_, insert, select, update

from reliable_mq.reconcile.repair import Action, Repair
from reliable_mq.reconcile.sql_ledger import STUB, open_engine, table_of
from reliable_mq.resend.sql_people_tables import audit_table
from reliable_mq.sql_types import let_tables_be_alike

UNCONFIRMED, CONFIRMED = 0, 1
ACTOR = "reconcile"
_BATCH = 500


@dataclass(frozen=True)
class Repaired:
    """What a repair came to."""

    repair: Repair
    changed: bool
    outcome: str


def repair_everywhere(
    urls: Sequence[str],
    prefix: str,
    run_id: str,
    repairs: Iterable[Repair],
    now: datetime,
    broker_name: str | None = None,
) -> list[Repaired]:
    """Do each repair in the database in which its stub lies."""
    left = list(repairs)
    done: list[Repaired] = []
    for url in urls:
        worker = SqlRepair(url, prefix, run_id, broker_name)
        mine = left if len(urls) == 1 else worker.mine(left)
        done += worker.apply(mine, now)
        known = {each.message_id for each in mine}
        left = [each for each in left if each.message_id not in known]
    return done


class SqlRepair:
    """Applies repairs in transactions of a few hundred."""

    def __init__(self, url: str, prefix: str, run_id: str, broker_name: str | None = None) -> None:
        metadata = let_tables_be_alike(MetaData())
        self._engine = open_engine(url)
        self._stubs: Table = table_of(STUB, prefix)
        self._audit = audit_table(metadata, prefix)
        self._run_id = run_id
        self._broker_name = broker_name
        metadata.create_all(self._engine)

    def mine(self, repairs: Sequence[Repair]) -> list[Repair]:
        """Return those whose stub lies in this database."""
        stub = self._stubs.c.message_id
        there: set[str] = set()
        with self._engine.connect() as connection:
            for at in range(0, len(repairs), _BATCH):
                ids = [each.message_id for each in repairs[at : at + _BATCH]]
                there.update(connection.scalars(select(stub).where(stub.in_(ids))))
        return [each for each in repairs if each.message_id in there]

    def apply(self, repairs: Iterable[Repair], now: datetime) -> list[Repaired]:
        """Do `repairs`; every one gets an audit row in the transaction of its change."""
        results: list[Repaired] = []
        batch: list[Repair] = []
        for repair in repairs:
            batch.append(repair)
            if len(batch) == _BATCH:
                results += self._apply_batch(batch, now)
                batch = []
        return results + self._apply_batch(batch, now)

    def _apply_batch(self, repairs: list[Repair], now: datetime) -> list[Repaired]:
        results = []
        with self._engine.begin() as connection:
            for repair in repairs:
                values, trouble = self._values(connection, repair, now)
                changed = not trouble and self._update(connection, repair, values)
                outcome = trouble or ("done" if changed else "the stub moved since; left alone")
                results.append(Repaired(repair, changed, outcome))
                connection.execute(insert(self._audit), self._audit_row(results[-1], values, now))
        return results

    def _update(self, connection: Connection, repair: Repair, values: Mapping[str, Any]) -> bool:
        statement = update(self._stubs).where(self._as_seen(repair)).values(**values)
        return connection.execute(statement).rowcount == 1

    def _as_seen(self, repair: Repair) -> ColumnElement[bool]:
        stub, seen = self._stubs.c, repair.seen
        return and_(
            stub.message_id == repair.message_id,
            stub.status == seen["stub_status"],
            stub.count == seen["stub_count"],
            stub.update_date == seen["stub_update_date"],
        )

    def _values(
        self, connection: Connection, repair: Repair, now: datetime
    ) -> tuple[dict[str, Any], str]:
        """Return what the stub's columns become, and what stands against it."""
        if repair.action is Action.CONFIRM:
            return {"status": CONFIRMED, "resend_time": None, "update_date": now}, ""
        if repair.action is Action.RESEND:
            # Unsent, all its sends before it, due at once; and a scheduler's, which tells consumers
            # that it was missed and who has consumed it.
            return {
                "status": UNCONFIRMED,
                "count": 0,
                "given_up": False,
                "missed": True,
                "resend_time": now,
                **dict.fromkeys(("broker_name", "queue_id", "offset", "owner", "lease_until")),
                "update_date": now,
            }, ""
        broker_name = self._broker_name or self._known_broker(connection, repair)
        if broker_name is None:
            return {}, "no ledger names the broker; give --broker-name"
        marked = {
            "broker_name": broker_name,
            "queue_id": repair.seen["record_queue_id"],
            "offset": repair.seen["record_queue_offset"],
            "update_date": now,
        }
        if repair.groups == ("",):  # the broker's acknowledgement was all that it waited for
            marked |= {"status": CONFIRMED, "resend_time": None}
        return marked, ""

    def _known_broker(self, connection: Connection, repair: Repair) -> str | None:
        if repair.seen["log_broker_name"]:
            return str(repair.seen["log_broker_name"])
        stub = self._stubs.c
        any_of = select(stub.broker_name).where(stub.broker_name.is_not(None)).limit(1)
        same_topic = any_of.where(stub.topic == repair.seen["topic"])
        for query in (same_topic, any_of):
            name: str | None = connection.scalar(query)
            if name:
                self._broker_name = name
                return name
        return None

    def _audit_row(
        self, result: Repaired, values: Mapping[str, Any], now: datetime
    ) -> dict[str, Any]:
        repair = result.repair
        detail = {
            "groups": repair.groups,
            "verdicts": repair.verdicts,
            "outcome": result.outcome,
            "before": {key: repair.seen[f"stub_{key}"] for key in ("status", "count", "offset")},
            "after": values if result.changed else {},
        }
        return {
            "create_date": now,
            "actor": ACTOR,
            "action": str(repair.action),
            "message_id": repair.message_id,
            "run_id": self._run_id,
            "changed": int(result.changed),
            "detail": json.dumps(detail, default=str),
        }
