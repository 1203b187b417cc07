"""What follows when a handler's statement ended the transaction that it shares with our rows.

Rows that say CONSUMED may be committed then, of messages whose effect is not whole or was not even
begun, and savepoints are gone. Nobody can take an effect back. So the culprit is given up: a person
sees what is there, because another attempt would have a part of it twice. What was done before it
is kept; what was not begun is undone, and begun anew.
"""

from collections.abc import Sequence

from reliable_mq.consume.retry_decider import DONE, Results
from reliable_mq.consume.shared_run import SharedTransaction
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.database.sql_handler_session import HandlerSession, RunsAgain, TransactionEnded


def settle(
    attempts: ConsumeTransaction, session: HandlerSession, run: SharedTransaction, results: Results
) -> float:
    """Settle an attempt whose transaction ended under it, and who shared it; never raises.

    Also one that lost its transaction, or had another one, before anybody looked: then the row
    that it began with, which only its commit can have committed, is there.

    Args:
        attempts: the protocol's database part.
        session: what the attempt failed in, rolled back.
        run: whose handler failed, who was done before it, and who has a row and never ran.
        results: gets the culprit, and what was done before it and is committed. Whoever is not in
            it is to be run again. It gets nothing when no transaction ended.

    Returns:
        0.0: nothing is left to be taken back. Else the database did not do it: seconds after which
        to call this again. Until then the attempts go on, and keep their leases: a row says
        CONSUMED of what never happened, and who gets the message next would believe it.
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
    except Exception as fault:  # noqa: BLE001 - told there
        return attempts.wait_after(fault)
    results[culprit.entry.token] = settled
    results.update((each.entry.token, DONE) for each in kept)
    return 0.0


def _has_row(attempts: ConsumeTransaction, session: HandlerSession, attempt: Attempt) -> bool:
    """Say whether the row is committed that a first attempt begins with; False: nobody knows.

    Raises:
        Exception: the database does not say it, of an attempt whose statement may have committed.
    """
    if attempt.receipt or session.is_committing:  # its row says RECEIVED, or is there by our commit
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
