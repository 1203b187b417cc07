"""What retention removes where the ledgers are reconciled in increments."""

from sqlalchemy import MetaData, select
from tests.resend.retained_ledgers import CONFIRMED, Ledgers
from tests.resend.test_retention import ledgers

from reliable_mq.database.sql_people_tables import audit_table
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.reconcile.runs.sql_outcome import allow_retention, forget
from reliable_mq.retention.retention import RetentionCounts

__all__ = ["ledgers"]  # a fixture


def reconciled(ledgers: Ledgers, until: float) -> None:
    """Let an increment have seen what changed before a time."""
    url = ledgers.database.engine.url.render_as_string(hide_password=False)
    allow_retention([url], "rmq_", utc_datetime(until))


def test_what_was_not_reconciled_stays(ledgers: Ledgers) -> None:
    """Given increments, then retention removes only what changed before they last read; without
    them it does not wait, unless it is told to, or not to."""
    for name, settled in (("seen", 1000.0), ("unseen", 1000.4), ("late", 1000.8)):
        ledgers.stub(name, CONFIRMED, settled=settled)
    ledgers.log("gone", consumed=1000.4)
    ledgers.log("kept", consumed=1000.6)
    always, never = (ledgers.retention(waits=waits) for waits in ("yes", "no"))

    assert always.run_once(9990.0) == RetentionCounts()
    reconciled(ledgers, 1000.3)
    assert ledgers.retention().run_once(9990.0).stubs == 1
    assert ledgers.names("stubs") == ["late", "unseen"]
    assert ledgers.names("logs") == ["gone", "kept"]
    reconciled(ledgers, 1000.5)
    counts = always.run_once(9990.0)
    assert (counts.stubs, counts.logs) == (1, 1)
    assert ledgers.names("stubs") == ["late"]
    assert ledgers.names("logs") == ["kept"]
    assert never.run_once(9990.0).stubs == 1
    assert ledgers.names("stubs") == []


def test_retention_goes_on_when_increments_are_forgotten_and_that_is_audited(
    ledgers: Ledgers,
) -> None:
    ledgers.stub("unseen", CONFIRMED, settled=1000.4)
    reconciled(ledgers, 1000.3)
    url = ledgers.database.engine.url.render_as_string(hide_password=False)
    assert ledgers.retention().run_once(9990.0).stubs == 0

    assert forget([url], "rmq_", utc_datetime(9990.0)) == 1

    assert ledgers.retention().run_once(9990.0).stubs == 1
    assert forget([url], "rmq_", utc_datetime(9990.0)) == 0
    with ledgers.database.engine.begin() as connection:
        (audited,) = connection.execute(select(audit_table(MetaData(), "rmq_"))).mappings()
    assert (audited["actor"], audited["action"]) == ("reconcile", "forget")
    assert "1970-01-01T00:16:40.3" in audited["detail"]
