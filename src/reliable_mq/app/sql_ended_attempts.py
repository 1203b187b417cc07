"""What follows when a handler's statement ended the transaction that it shares with our rows.

Rows that say CONSUMED may be committed then, of messages whose effect is not whole or was not even
begun, and savepoints are gone. Nobody can take an effect back. So the culprit is given up: a person
sees what is there, because another attempt would have a part of it twice. What was done before it
is kept; what was not begun is undone, and begun anew.
"""

from collections.abc import Sequence

from reliable_mq.app.judging import DONE, Results
from reliable_mq.app.sql_attempts import Attempts
from reliable_mq.app.sql_handler_session import HandlerSession, TransactionEnded
from reliable_mq.app.sql_receipts import Attempt


def settle_failed(
    attempts: Attempts,
    session: HandlerSession,
    attempt: Attempt,
    error: Exception,
    results: Results,
) -> None:
    """Settle an attempt that failed alone; its session is rolled back. Never raises."""
    if not settle_ended(attempts, session, attempt, error, results):
        results[attempt.entry.token] = attempts.fail(attempt, error)


def settle_ended(
    attempts: Attempts,
    session: HandlerSession,
    culprit: Attempt,
    error: Exception,
    results: Results,
    *,
    done: Sequence[Attempt] = (),
    not_run: Sequence[Attempt] = (),
) -> bool:
    """Settle an attempt whose transaction ended under it, and who shared it; never raises.

    Also one that lost its transaction, or had another one, before anybody looked: then the row
    that it began with, which only its commit can have committed, is there.

    Args:
        attempts: the protocol's database part.
        session: what the attempt failed in, rolled back.
        culprit: whose handler failed.
        error: why.
        results: gets the culprit, and what was done before it and is committed. Whoever is not in
            it is to be run again.
        done: had their effect before it.
        not_run: have a row that says CONSUMED, and no effect.

    Returns:
        False: it did not end under it, and nothing was settled.
    """
    if not isinstance(error, TransactionEnded):
        if session.is_committing or not _has_row(attempts, culprit):
            return False
        error = TransactionEnded()
    token = culprit.entry.token
    try:
        with attempts.database.session() as writing:
            connection = writing.connection()
            kept = [each for each in done if attempts.log.has_consumed(connection, each.entry)]
            for each in (culprit, *not_run):
                attempts.log.take_back(connection, each.entry)
                if each.key is not None:
                    attempts.keys.take_back(connection, each.key)
            settled = attempts.fail_inside(writing, culprit, error)
            attempts.commit(writing, kept)
    except Exception as fault:  # noqa: BLE001 - told there
        results[token] = attempts.unhandled(fault)
        return True
    results[token] = settled
    results.update((each.entry.token, DONE) for each in kept)
    return True


def _has_row(attempts: Attempts, attempt: Attempt) -> bool:
    """Say whether the row is committed that a first attempt begins with; False: nobody knows."""
    if attempt.receipt:  # its row was committed before it, and says RECEIVED
        return False
    try:
        with attempts.database.reading_engine.connect() as connection:
            return attempts.log.has_consumed(connection, attempt.entry)
    except Exception:  # noqa: BLE001 - the database is away; who writes there next tells it
        return False


def unsettled(attempts: Sequence[Attempt], results: Results) -> list[Attempt]:
    """Return the attempts that have no result yet."""
    return [each for each in attempts if each.entry.token not in results]
