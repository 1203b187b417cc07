"""Runs a `def` handler for some attempts, in the calling thread."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from reliable_mq.app.sql_attempts import DONE, Attempt, Attempts, Results
from reliable_mq.errors import UsageError


def handle(attempts: Attempts, wanted: Sequence[Attempt]) -> Results:
    """Run the handler for all, many in one transaction; return how each ended, by token.

    Never raises: a delivery whose fate is unknown is handed out again.
    """
    results: Results = {}
    try:
        ready = attempts.receive([each for each in wanted if each.receipt], results)
        ready += [each for each in wanted if not each.receipt]
        while ready:
            conflicts = _run(attempts, ready, results)
            ready = attempts.receive(conflicts, results)
    except Exception as error:  # noqa: BLE001 - told by `unhandled`
        for each in wanted:
            results.setdefault(each.entry.token, attempts.unhandled(error))
    return results


def _run(attempts: Attempts, ready: Sequence[Attempt], results: Results) -> list[Attempt]:
    """Run attempts in one transaction; return those that must be received first."""
    if len(ready) == 1:
        return _run_one(attempts, ready[0], results)
    ended: Results = {}
    try:
        with attempts.database.session() as session:
            to_run, conflicts = attempts.begin(session, ready, ended)
            done = []
            for each in to_run:
                savepoint = session.begin_nested()
                try:
                    _call(attempts, session, each)
                    savepoint.commit()
                except Exception as error:  # noqa: BLE001 - judged by `fail_inside`
                    savepoint.rollback()
                    ended[each.entry.token] = attempts.fail_inside(session, each, error)
                else:
                    done.append(each)
                    ended[each.entry.token] = DONE
            attempts.commit(session, done)
    except Exception:  # noqa: BLE001 - one by one it shows whose it was
        # The transaction of all is gone, with everything that was recorded in it.
        return [conflict for each in ready for conflict in _run_one(attempts, each, results)]
    results.update(ended)
    return conflicts


def _run_one(attempts: Attempts, attempt: Attempt, results: Results) -> list[Attempt]:
    """Run one attempt in a transaction of its own."""
    with attempts.database.session() as session:
        try:
            to_run, conflicts = attempts.begin(session, [attempt], results)
        except Exception as error:  # noqa: BLE001 - told by `unhandled`
            session.rollback()
            results[attempt.entry.token] = attempts.unhandled(error)
            return []
        if not to_run:
            return conflicts
        try:
            _call(attempts, session, attempt)
            attempts.commit(session, [attempt])
        except Exception as error:  # noqa: BLE001 - judged by `fail`
            session.rollback()
            results[attempt.entry.token] = attempts.fail(attempt, error)
        else:
            results[attempt.entry.token] = DONE
    return []


def _call(attempts: Attempts, session: Session, attempt: Attempt) -> None:
    plan = attempts.consumer.plan
    transaction = session.get_transaction()
    plan.function(**plan.arguments(attempt.payload, session, attempt.message))
    if session.get_transaction() is not transaction:
        raise UsageError("a handler must not commit or roll back its session; raise instead")
    attempts.finish(session, attempt)
