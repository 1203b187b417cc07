"""Settles attempts after a handler's statement ended the transaction that has our rows, too.

Then CONSUMED rows may be committed for messages whose effect is incomplete or was not begun, and
savepoints are gone. An effect cannot be taken back. So the culprit is given up, and a person looks
at its effect: another attempt would repeat a part of it. Attempts before it are kept. Attempts
after it were not begun: their rows are removed, and they begin again.
"""

from collections.abc import Sequence

from reliable_mq.consume.retry_decider import DONE, Results
from reliable_mq.consume.shared_run import SharedTransaction
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.database.ended_transactions import RunsAgain, TransactionEnded
from reliable_mq.database.sql_handler_session import HandlerSession


def settle(
    attempts: ConsumeTransaction, session: HandlerSession, run: SharedTransaction, results: Results
) -> float:
    """Settle an attempt whose transaction ended, and attempts that shared it; never raises.

    It also settles an attempt that lost or replaced its transaction before a check. Then its first
    row exists, and only a commit of its own can have committed that row.

    Args:
        attempts: the protocol's database part.
        session: the session of the failed attempt, rolled back.
        run: the failed attempt, the done ones before it, and those with a row that never ran.
        results: gets the culprit, and the attempts before it that are committed. The caller must
            run all others again. It gets nothing if no transaction ended.

    Returns:
        0.0: nothing is left to be taken back. Otherwise the database failed: the seconds after
        which to call this again. Until then the attempts continue and keep their leases. A CONSUMED
        row exists for an effect that does not: the next owner of the message would trust it.
    """
    if run.failed is None:
        return 0.0
    culprit, error = run.failed
    if isinstance(error, RunsAgain):
        attempts.sharing.refuse()
    try:
        if not isinstance(error, TransactionEnded):
            if not _has_row(attempts, session, culprit):
                return 0.0
            error = TransactionEnded()
        with attempts.database.session() as writing:
            connection = writing.connection()
            kept = [each for each in run.done if attempts.log.has_consumed(connection, each.entry)]
            for each in (culprit, *run.not_run):
                attempts.log.take_back(connection, each.entry)
                if each.key is not None:
                    attempts.keys.take_back(connection, each.key)
            settled = attempts.fail_inside(writing, culprit, error)
            attempts.commit(writing, kept)
    except Exception as fault:  # noqa: BLE001 - logged there
        return attempts.wait_after(fault)
    results[culprit.entry.token] = settled
    results.update((each.entry.token, DONE) for each in kept)
    return 0.0


def _has_row(attempts: ConsumeTransaction, session: HandlerSession, attempt: Attempt) -> bool:
    """Return whether a first attempt's row is committed; False: it is not, or this is unknown.

    Raises:
        Exception: the database does not answer, and a statement of the attempt may have committed.
    """
    if attempt.receipt or session.is_committing:  # its row is RECEIVED, or from our own commit
        return False
    try:
        with attempts.database.reading_engine.connect() as connection:
            return attempts.log.has_consumed(connection, attempt.entry)
    except Exception:
        if session.had_probe:
            raise
        return False


def unsettled(attempts: Sequence[Attempt], results: Results) -> list[Attempt]:
    """Return the attempts that have no result yet."""
    return [each for each in attempts if each.entry.token not in results]
