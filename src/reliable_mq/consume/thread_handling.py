"""Runs a `def` handler for some attempts, in the calling thread."""

import time
from collections.abc import Sequence

from msgspec.structs import replace

from reliable_mq.consume.consumer import check_answer
from reliable_mq.consume.observed_handlers import observed
from reliable_mq.consume.retry_decider import DONE, HandlerExit, Results
from reliable_mq.consume.shared_run import SharedTransaction
from reliable_mq.consume.sql_consume_transaction import AttemptStart, ConsumeTransaction
from reliable_mq.consume.sql_ended_attempts import settle, unsettled
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.database.sql_handler_session import HandlerSession, TransactionEnded


def handle(attempts: ConsumeTransaction, wanted: Sequence[Attempt]) -> Results:
    """Run the handler for all, many in one transaction; return how each ended, by token.

    Never raises: a delivery whose fate is unknown is handed out again.
    """
    results: Results = {}
    try:
        singly: list[Attempt] = []
        ready = attempts.receive([each for each in wanted if each.receipt], results, singly)
        ready += [each for each in wanted if not each.receipt]
        while ready:
            conflicts = _run(attempts, ready, results)
            ready = attempts.receive(conflicts, results, singly)
        for each in singly:
            _run(attempts, attempts.receive([each], results, []), results)
    except Exception as error:  # noqa: BLE001 - told by `unhandled`
        for each in wanted:
            results.setdefault(each.entry.token, attempts.unhandled(error))
    return results


def _run(attempts: ConsumeTransaction, ready: Sequence[Attempt], results: Results) -> list[Attempt]:
    """Run attempts in one transaction; return those that must be received first."""
    if not ready:
        return []
    if attempts.consumer.batch == 1:
        return [conflict for each in ready for conflict in _run_one(attempts, each, results)]
    if len(ready) == 1:
        return _run_one(attempts, ready[0], results)
    if attempts.sharing.is_tried(ready) and _run_together(attempts, ready, results):
        results.update((each.entry.token, DONE) for each in ready)
        return []
    return _run_in_savepoints(attempts, unsettled(ready, results), results)


def _run_in_savepoints(
    attempts: ConsumeTransaction, ready: Sequence[Attempt], results: Results
) -> list[Attempt]:
    """Run attempts in one transaction, in a savepoint each; return as `_run` does."""
    ended: Results = {}
    conflicts = []
    run = SharedTransaction(ready)
    try:
        with attempts.database.handler_session() as session:
            for each in ready:
                savepoint = session.begin_nested()
                begun = attempts.begin(session, each, ended)
                if begun in (AttemptStart.RECEIVE, AttemptStart.SETTLED):
                    savepoint.rollback()
                    if begun is AttemptStart.RECEIVE:
                        conflicts.append(replace(each, receipt=True))
                    continue
                run.begin(each)
                try:
                    if begun is AttemptStart.RUN:
                        _call(attempts, session, each)
                    savepoint.commit()
                except Exception as raised:
                    run.fail(error := session.cause_of(raised))
                    if isinstance(error, TransactionEnded) or session.has_lost_connection:
                        raise
                    savepoint.rollback()
                    ended[each.entry.token] = attempts.fail_inside(session, each, error)
                    run.undo()
                else:
                    run.end()
                    ended[each.entry.token] = DONE
            attempts.commit(session, run.done)
    except Exception:  # noqa: BLE001 - one by one it shows whose it was
        # The transaction of all is gone, with everything that was recorded in it.
        if run.failed is not None:
            _settle(attempts, session, run, results)
        left = unsettled(ready, results)
        return [conflict for each in left for conflict in _run_one(attempts, each, results)]
    results.update(ended)
    return conflicts


def _run_together(attempts: ConsumeTransaction, ready: Sequence[Attempt], results: Results) -> bool:
    """Run first attempts in one transaction without a savepoint each, as it mostly goes well.

    Returns:
        False when anything did not; then nothing of it is left but what is in `results`, and it
        shows one by one whose it was.
    """
    run = SharedTransaction(ready, have_rows=True)
    try:
        with attempts.database.handler_session() as session:
            session.is_shared = True
            if not attempts.begin_together(session, ready):
                return False
            for each in ready:
                run.begin(each)
                try:
                    _answer(attempts, session, each)
                except Exception as raised:
                    run.fail(session.cause_of(raised))
                    raise
                run.end()
            attempts.commit(session, ready)
    except Exception:  # noqa: BLE001 - it comes again, with a savepoint, and is judged then
        if run.failed is not None:
            _settle(attempts, session, run, results)
        return False
    return True


def _run_one(attempts: ConsumeTransaction, attempt: Attempt, results: Results) -> list[Attempt]:
    """Run one attempt in a transaction of its own."""
    with attempts.database.handler_session() as session:
        try:
            begun = attempts.begin(session, attempt, results)
        except Exception as error:  # noqa: BLE001 - told by `unwritten`
            session.rollback()
            results[attempt.entry.token] = attempts.unwritten(attempt, error)
            return []
        if begun in (AttemptStart.RECEIVE, AttemptStart.SETTLED):
            session.rollback()
            return [replace(attempt, receipt=True)] if begun is AttemptStart.RECEIVE else []
        run = SharedTransaction([attempt])
        run.begin(attempt)
        try:
            if begun is AttemptStart.RUN:
                _call(attempts, session, attempt)
            attempts.commit(session, [attempt])
        except Exception as raised:  # noqa: BLE001 - judged by `fail`
            cause = session.cause_of(raised)
            session.rollback()
            run.fail(cause)
            _settle(attempts, session, run, results)
            if attempt.entry.token not in results:
                results[attempt.entry.token] = attempts.fail(attempt, cause)
        else:
            results[attempt.entry.token] = DONE
    return []


def _settle(
    attempts: ConsumeTransaction, session: HandlerSession, run: SharedTransaction, results: Results
) -> None:
    while wait := settle(attempts, session, run, results):
        time.sleep(wait)


def _call(attempts: ConsumeTransaction, session: HandlerSession, attempt: Attempt) -> None:
    _answer(attempts, session, attempt)
    attempts.finish(session, attempt)


def _answer(attempts: ConsumeTransaction, session: HandlerSession, attempt: Attempt) -> None:
    plan = attempts.consumer.plan
    arguments = plan.arguments(attempt.payload, session, attempt.message)
    group = attempts.consumer.group
    with session.held(), observed(attempts.hooks, group, attempt.message) as is_wanted:
        if not is_wanted:
            return
        try:
            answer = plan.function(**arguments)
        except Exception:
            raise
        except BaseException as error:  # sys.exit() in a handler would end the loop's thread
            raise HandlerExit(repr(error)) from error
        if session.is_in_doubt:
            session.look_back(undo=False)
        if answer is not None:
            check_answer(answer)
