"""Has people told of what a run found and nobody was told of, through the outbox of escalations.

A run with news is one escalation, in the database that keeps the record of the runs; notifiers
tell it as they tell every other (018): a mail server that is down loses nothing. What an open
escalation tells of already is no news, nor is what the run has repaired. A ledger that was not
whole is news as a finding is. An escalation is closed by the first run that looked at its messages
again and found none of its findings, and nothing missing that was missing.

Nothing has to be remembered between a run and this: a process that dies before has told nobody, and
what is wrong is still wrong, and news, for the next run.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, and_, exists, or_, select, true

from reliable_mq.database.sql_clock import DatabaseClock
from reliable_mq.database.sql_people_tables import audit_table, escalation_table
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_types import set_table_options
from reliable_mq.escalate.escalation import Escalation, EscalationKind
from reliable_mq.escalate.sql_escalations import SqlEscalations
from reliable_mq.reconcile.databases.sql_ledger import STUB, open_engine, table_of
from reliable_mq.reconcile.report.digest import NewFindings, flaws_in, has_read_all, reason_of

_BATCH = 500
SEEN_AGAIN = "reconciled"
"""Why an escalation of a run was closed: a later run found none of its findings."""


def escalate_news(urls: Sequence[str], prefix: str, summary: Mapping[str, Any]) -> int:
    """Escalate what is new in a run, close what is good again; return how much is new.

    Args:
        urls: the databases of the run; the first one keeps its record.
        prefix: of the tables.
        summary: of the run, whose row and findings are committed.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: a database failed; nobody is told.
    """
    digest = _SqlDigest(urls, prefix, str(summary["run_id"]))
    return digest.escalate_news(summary)


class _SqlDigest:
    def __init__(self, urls: Sequence[str], prefix: str, run_id: str) -> None:
        self._run_id = run_id
        self._engines = [open_engine(url) for url in urls]
        metadata = set_table_options(MetaData())
        self._audit = audit_table(metadata, prefix)
        self._findings = finding_table(metadata, prefix)
        self._runs = run_table(metadata, prefix)
        self._table = escalation_table(metadata, prefix)
        for engine in self._engines:
            metadata.create_all(engine, tables=[self._audit, self._table])
        stubs = table_of(STUB, prefix)
        self._escalations = SqlEscalations(self._engines[0], self._table, stubs)

    def escalate_news(self, summary: Mapping[str, Any]) -> int:
        """Do it, in one transaction of the first database."""
        first = self._engines[0]
        clock = DatabaseClock(first, time.time)
        with first.begin() as connection:
            now = clock.now_on(connection)
            open_runs = self._open_runs(connection)
            known = self._flaws(connection, open_runs)
            flaws = {
                name: why for name, why in flaws_in(summary).items() if (name, why) not in known
            }
            news = self._news(connection, open_runs)._replace(flaws=flaws)
            if news.total:
                escalation = Escalation(
                    kind=EscalationKind.RECONCILIATION,
                    message_id=self._run_id,
                    topic="",
                    reason=reason_of(news, summary),
                )
                self._escalations.escalate(connection, [escalation], now)
            if summary["findings_kept"] == summary["findings_total"]:  # else nobody can know
                good = list(self._resolved_runs(connection, open_runs, summary))
                self._escalations.close(connection, good, SEEN_AGAIN, now)
        return news.total

    def _open_runs(self, connection: Connection) -> list[str]:
        """Return the earlier runs whose findings a person was told of, and has yet to settle."""
        this = self._table.c
        is_open = and_(this.kind == EscalationKind.RECONCILIATION.value, this.close_date.is_(None))
        runs = connection.scalars(select(this.message_id).where(is_open))
        return [each for each in runs if each != self._run_id]

    def _flaws(self, connection: Connection, runs: Sequence[str]) -> set[tuple[str, str]]:
        """Return what was missing of ledgers, as these runs noted it."""
        row = self._runs.c
        texts = connection.scalars(select(row.whole).where(row.run_id.in_(runs)))
        return {flaw for text in texts for flaw in json.loads(text or "{}").items()}

    def _news(self, connection: Connection, open_runs: Sequence[str]) -> NewFindings:
        found, known = self._findings.alias("found"), self._findings.alias("known")
        is_known = exists().where(_same(found, known), known.c.run_id.in_(open_runs))
        columns = (found.c.message_id, found.c.verdict)
        news = select(*columns).where(found.c.run_id == self._run_id, ~is_known)
        news = news.order_by(found.c.message_id).execution_options(yield_per=_BATCH)
        rows = connection.execute(news)
        counts, oldest = Counter[str](), dict[str, str]()
        for batch in _batches(rows):
            repaired = self._repaired([row.message_id for row in batch])
            for message_id, verdict in batch:
                if message_id not in repaired:
                    counts[verdict] += 1
                    oldest.setdefault(verdict, message_id)
        return NewFindings(counts, oldest)

    def _repaired(self, message_ids: Sequence[str]) -> set[str]:
        """Return the messages whose stubs this run has changed, in whichever database they lie."""
        audit = self._audit.c
        done = (audit.run_id == self._run_id, audit.changed == 1)
        query = select(audit.message_id).where(audit.message_id.in_(message_ids), *done)
        return {each for engine in self._engines for each in _scalars(engine, query)}

    def _resolved_runs(
        self, connection: Connection, open_runs: Sequence[str], summary: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the runs of which nothing is found any more, and whose ledgers were looked at."""
        missing = set(flaws_in(summary).items())
        then, now = self._runs.alias("then"), self._runs.alias("now")
        since = or_(now.c.since.is_(None), then.c.since >= now.c.since)
        until = or_(now.c.until.is_(None), then.c.until <= now.c.until)
        covered = (
            select(then.c.run_id)
            .join(now, true())
            .where(now.c.run_id == self._run_id, then.c.run_id.in_(open_runs), since, until)
        )
        for run_id in connection.scalars(covered).all():
            flaws = self._flaws(connection, [run_id])
            if flaws & missing or (flaws and not has_read_all(summary)):
                continue
            old, new = self._findings.alias("old"), self._findings.alias("new")
            still = (
                select(old.c.message_id)
                .join(new, _same(old, new))
                .where(old.c.run_id == run_id, new.c.run_id == self._run_id)
            )
            if connection.execute(still.limit(1)).first() is None:
                yield run_id


def _same(one: Any, other: Any) -> Any:
    names = ("message_id", "consumer_group", "verdict")
    return and_(*(one.c[name] == other.c[name] for name in names))


def _scalars(engine: Engine, query: Any) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(query))


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(rows)
    while batch := list(islice(rest, _BATCH)):
        yield batch
