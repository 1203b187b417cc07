"""Runs an `async def` handler for some attempts, as part of the calling task.

The same steps as `thread_handling`; what touches the database runs on the session's own greenlet.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncSession

from reliable_mq.consume.consumer import check_answer
from reliable_mq.consume.observed_handlers import observed
from reliable_mq.consume.retry_decider import DONE, HandlerExit, Results
from reliable_mq.consume.shared_run import SharedTransaction
from reliable_mq.consume.sql_consume_transaction import AttemptStart, ConsumeTransaction
from reliable_mq.consume.sql_ended_attempts import settle, unsettled
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.database.sql_handler_session import HandlerSession, TransactionEnded


async def handle(attempts: ConsumeTransaction, wanted: Sequence[Attempt]) -> Results:
    """Run the handler for all, many in one transaction; return how each ended, by token.

    Never raises: a delivery whose fate is unknown is handed out again.
    """
    results: Results = {}
    try:
        singly: list[Attempt] = []
        receipts = [each for each in wanted if each.receipt]
        ready = await _receive(attempts, receipts, results, singly)
        ready += [each for each in wanted if not each.receipt]
        while ready:
            conflicts = await _run(attempts, ready, results)
            ready = await _receive(attempts, conflicts, results, singly)
        for each in singly:
            await _run(attempts, await _receive(attempts, [each], results, []), results)
    except Exception as error:  # noqa: BLE001 - told by `unhandled`
        for each in wanted:
            results.setdefault(each.entry.token, attempts.unhandled(error))
    return results


async def _receive(
    attempts: ConsumeTransaction, wanted: Sequence[Attempt], results: Results, singly: list[Attempt]
) -> list[Attempt]:
    return await asyncio.to_thread(attempts.receive, wanted, results, singly) if wanted else []


async def _run(
    attempts: ConsumeTransaction, ready: Sequence[Attempt], results: Results
) -> list[Attempt]:
    """Run attempts in one transaction; return those that must be received first."""
    if not ready:
        return []
    if len(ready) == 1:
        return await _run_one(attempts, ready[0], results)
    if attempts.sharing.is_tried(ready) and await _run_together(attempts, ready, results):
        results.update((each.entry.token, DONE) for each in ready)
        return []
    return await _run_in_savepoints(attempts, unsettled(ready, results), results)


async def _run_in_savepoints(
    attempts: ConsumeTransaction, ready: Sequence[Attempt], results: Results
) -> list[Attempt]:
    """Run attempts in one transaction, in a savepoint each; return as `_run` does."""
    ended: Results = {}
    conflicts = []
    run = SharedTransaction(ready)
    try:
        async with attempts.database.async_handler_session() as session:
            for each in ready:
                savepoint = await session.begin_nested()
                begun = await session.run_sync(attempts.begin, each, ended)
                if begun in (AttemptStart.RECEIVE, AttemptStart.SETTLED):
                    await savepoint.rollback()
                    if begun is AttemptStart.RECEIVE:
                        conflicts.append(replace(each, receipt=True))
                    continue
                run.begin(each)
                try:
                    if begun is AttemptStart.RUN:
                        await _call(attempts, session, each)
                    await savepoint.commit()
                except Exception as raised:
                    run.fail(error := await _cause_of(session, raised))
                    if isinstance(error, TransactionEnded) or _inner(session).has_lost_connection:
                        raise
                    await savepoint.rollback()
                    ended[each.entry.token] = await session.run_sync(
                        attempts.fail_inside, each, error
                    )
                    run.undo()
                else:
                    run.end()
                    ended[each.entry.token] = DONE
            await session.run_sync(attempts.commit, run.done)
    except Exception:  # noqa: BLE001 - one by one it shows whose it was
        # The transaction of all is gone, with everything that was recorded in it.
        if run.failed is not None:
            await _settle(attempts, session, run, results)
        left = unsettled(ready, results)
        lists = [await _run_one(attempts, each, results) for each in left]
        return [conflict for each in lists for conflict in each]
    results.update(ended)
    return conflicts


async def _run_together(
    attempts: ConsumeTransaction, ready: Sequence[Attempt], results: Results
) -> bool:
    """Run first attempts in one transaction; see `thread_handling`."""
    run = SharedTransaction(ready, have_rows=True)
    try:
        async with attempts.database.async_handler_session() as session:
            _inner(session).is_shared = True
            if not await session.run_sync(attempts.begin_together, ready):
                return False
            for each in ready:
                run.begin(each)
                try:
                    await _answer(attempts, session, each)
                except Exception as raised:
                    run.fail(await _cause_of(session, raised))
                    raise
                run.end()
            await session.run_sync(attempts.commit, ready)
    except Exception:  # noqa: BLE001 - it comes again, with a savepoint, and is judged then
        if run.failed is not None:
            await _settle(attempts, session, run, results)
        return False
    return True


async def _run_one(
    attempts: ConsumeTransaction, attempt: Attempt, results: Results
) -> list[Attempt]:
    """Run one attempt in a transaction of its own."""
    async with attempts.database.async_handler_session() as session:
        try:
            begun = await session.run_sync(attempts.begin, attempt, results)
        except Exception as error:  # noqa: BLE001 - told by `unwritten`
            await session.rollback()
            results[attempt.entry.token] = await asyncio.to_thread(
                attempts.unwritten, attempt, error
            )
            return []
        if begun in (AttemptStart.RECEIVE, AttemptStart.SETTLED):
            await session.rollback()
            return [replace(attempt, receipt=True)] if begun is AttemptStart.RECEIVE else []
        run = SharedTransaction([attempt])
        run.begin(attempt)
        try:
            if begun is AttemptStart.RUN:
                await _call(attempts, session, attempt)
            await session.run_sync(attempts.commit, [attempt])
        except Exception as raised:  # noqa: BLE001 - judged by `fail`
            cause = await _cause_of(session, raised)
            await session.rollback()
            run.fail(cause)
            await _settle(attempts, session, run, results)
            if attempt.entry.token not in results:
                failed = await asyncio.to_thread(attempts.fail, attempt, cause)
                results[attempt.entry.token] = failed
        else:
            results[attempt.entry.token] = DONE
    return []


async def _settle(
    attempts: ConsumeTransaction, session: AsyncSession, run: SharedTransaction, results: Results
) -> None:
    inner = _inner(session)
    while wait := await asyncio.to_thread(settle, attempts, inner, run, results):
        await asyncio.sleep(wait)


async def _call(attempts: ConsumeTransaction, session: AsyncSession, attempt: Attempt) -> None:
    await _answer(attempts, session, attempt)
    await session.run_sync(attempts.finish, attempt)


async def _cause_of(session: AsyncSession, raised: Exception) -> Exception:
    inner = _inner(session)
    if not inner.is_in_doubt:
        return raised
    return await session.run_sync(lambda _: inner.cause_of(raised))


def _inner(session: AsyncSession) -> HandlerSession:
    return cast("HandlerSession", session.sync_session)


async def _answer(attempts: ConsumeTransaction, session: AsyncSession, attempt: Attempt) -> None:
    plan = attempts.consumer.plan
    arguments = plan.arguments(attempt.payload, session, attempt.message)
    inner = _inner(session)
    group = attempts.consumer.group
    with inner.held(), observed(attempts.hooks, group, attempt.message) as is_wanted:
        if not is_wanted:
            return
        task = asyncio.current_task()
        try:
            answer = await plan.function(**arguments)
        except Exception:
            raise
        except BaseException as error:
            if _is_our_end(error, task):
                raise
            raise HandlerExit(repr(error)) from error
        if inner.is_in_doubt:
            await session.run_sync(lambda _: inner.look_back(undo=False))
        if answer is not None:
            check_answer(answer)


def _is_our_end(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Say whether this very task is cancelled or taken apart, rather than what a handler awaits."""
    if isinstance(error, asyncio.CancelledError) and task is not None:
        return task.cancelling() > 0
    return isinstance(error, GeneratorExit) and not _runs(task)


def _runs(task: "asyncio.Task[Any] | None") -> bool:
    """Say whether a task runs here; what is thrown into one that waits comes from elsewhere."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop runs
        return False
