"""Runs a handler for its attempts, in transactions and savepoints, and settles their results.

A handler's answer is judged here, too.

Written once for `def` and `async def` handlers. Only their world differs, see `thread_world`.
"""

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import Any

from msgspec.structs import replace
from sqlalchemy.orm import SessionTransaction

from reliable_mq import trace_context
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.open_telemetry import OpenTelemetryMiddleware
from reliable_mq.consume.consumer import CallPlan
from reliable_mq.consume.observed_handlers import observed
from reliable_mq.consume.retry_decider import DONE, HandlerExit, Results
from reliable_mq.consume.shared_run import SharedTransaction
from reliable_mq.consume.sql_consume_transaction import AttemptStart, ConsumeTransaction
from reliable_mq.consume.sql_ended_attempts import settle, unsettled
from reliable_mq.consume.sql_receipts import Attempt
from reliable_mq.database.ended_transactions import TransactionEnded
from reliable_mq.database.sql_handler_session import HandlerSession
from reliable_mq.database.thread_world import ConnectionOfSeries, ThreadWorld
from reliable_mq.errors import UsageError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outbox.schema import SchemaTooNew
from reliable_mq.outcomes import RAISED, checked_outcome, is_outcome
from reliable_mq.trace_context import FIELDS, contexts, extracted, propagators

_TRACE_FIELDS = frozenset(FIELDS)
_NOT_OURS = (AttemptStart.RECEIVE, AttemptStart.SETTLED)


class HandlerRun:
    """Runs a consumer's handler for attempts that were delivered together.

    Invariant: an attempt that has a result is not run again.

    Args:
        world: a thread for a `def` handler, an event loop for an `async def` one.
        attempts: the statements of the consumer's protocol.
    """

    def __init__(self, world: ThreadWorld, attempts: ConsumeTransaction) -> None:
        self._world = world
        self._attempts = attempts
        self._results: Results = {}

    async def handle(self, wanted: Sequence[Attempt]) -> Results:
        """Run the handler for all attempts; return their results by token.

        It never raises: an attempt with an unknown result is delivered again.
        """
        results = self._results
        singly: list[Attempt] = []
        try:
            ready = [each for each in wanted if not each.receipt]
            if len(ready) < len(wanted):
                receipts = [each for each in wanted if each.receipt]
                ready = await self._receive(receipts, singly) + ready
            while ready:
                conflicts = await self._run(ready)
                ready = await self._receive(conflicts, singly) if conflicts else []
            for each in singly:
                await self._run(await self._receive([each], []))
        except Exception as error:  # noqa: BLE001 - told by `unhandled`
            for each in wanted:
                results.setdefault(each.entry.token, self._attempts.unhandled(error))
        return results

    async def _receive(self, wanted: Sequence[Attempt], singly: list[Attempt]) -> list[Attempt]:
        receive, world = self._attempts.receive, self._world
        if world.may_block:
            return receive(wanted, self._results, singly)
        return await world.run_blocking(receive, wanted, self._results, singly)

    async def _run(self, ready: Sequence[Attempt]) -> list[Attempt]:
        """Run attempts in one transaction; return those that need a RECEIVED row first."""
        if self._attempts.consumer.batch == 1 or len(ready) <= 1:  # a series shares nothing
            return await self._run_singly(ready)
        if self._attempts.sharing.is_tried(ready) and await self._run_together(ready):
            self._results.update((each.entry.token, DONE) for each in ready)
            return []
        return await self._run_in_savepoints(unsettled(ready, self._results))

    async def _run_in_savepoints(self, ready: Sequence[Attempt]) -> list[Attempt]:
        """Run attempts in one transaction, each in a savepoint; returns as `_run`."""
        world, attempts = self._world, self._attempts
        ended: Results = {}
        conflicts = []
        run = SharedTransaction(ready)
        try:
            async with world.session() as session:
                for each in ready:
                    savepoint = await world.in_session(session, HandlerSession.begin_nested)
                    begun = await world.in_session(session, attempts.begin, each, ended)
                    if begun in _NOT_OURS:
                        await world.in_session(session, _undo, savepoint)
                        conflicts += _to_receive(each, begun)
                        continue
                    run.begin(each)
                    try:
                        if begun is AttemptStart.RUN:
                            await self._answer(session, each)
                            await world.in_session(session, attempts.finish, each)
                        await world.in_session(session, _release, savepoint)
                    except Exception as raised:
                        run.fail(error := await self._cause_of(session, raised))
                        is_gone = world.sync_session(session).has_lost_connection
                        if is_gone or isinstance(error, TransactionEnded):
                            raise
                        await world.in_session(session, _undo, savepoint)
                        failed = await world.in_session(session, attempts.fail_inside, each, error)
                        ended[each.entry.token] = failed
                        run.undo()
                    else:
                        run.end()
                        ended[each.entry.token] = DONE
                await world.in_session(session, attempts.commit, run.done)
        except Exception:  # noqa: BLE001 - the single runs find the attempt that failed
            # The shared transaction is rolled back, with everything that was recorded in it.
            if run.failed is not None:
                await self._settle(session, run)
            return await self._run_singly(unsettled(ready, self._results))
        self._results.update(ended)
        return conflicts

    async def _run_together(self, ready: Sequence[Attempt]) -> bool:
        """Run first attempts in one transaction without savepoints, because most succeed.

        Returns:
            False when something failed. Then everything is rolled back, except settled results.
        """
        world, attempts = self._world, self._attempts
        run = SharedTransaction(ready, have_rows=True)
        try:
            async with world.session() as session:
                world.sync_session(session).is_shared = True
                if not await world.in_session(session, attempts.begin_many, ready):
                    return False
                for each in ready:
                    run.begin(each)
                    try:
                        await self._answer(session, each)
                    except Exception as raised:
                        run.fail(await self._cause_of(session, raised))
                        raise
                    run.end()
                await world.in_session(session, attempts.commit, ready)
        except Exception:  # noqa: BLE001 - it runs again with savepoints, and is judged then
            if run.failed is not None:
                await self._settle(session, run)
            return False
        return True

    async def _run_singly(self, ready: Sequence[Attempt]) -> list[Attempt]:
        """Run each attempt in its own transaction; returns as `_run`."""
        if len(ready) == 1:
            return await self._run_one(ready[0])
        conflicts = []
        series = self._world.series()
        try:
            for each, following in zip_longest(ready, ready[1:]):
                is_followed = following is not None and not following.receipt
                conflicts += await self._run_one(each, series, is_followed=is_followed)
        finally:
            if series is not None:
                series.release()
        return conflicts

    async def _run_one(
        self,
        attempt: Attempt,
        series: ConnectionOfSeries | None = None,
        *,
        is_followed: bool = False,
    ) -> list[Attempt]:
        world, attempts, results = self._world, self._attempts, self._results
        token = attempt.entry.token
        async with world.session() as session:
            try:
                if series is not None and not attempt.receipt:
                    series.lend(session)
                begun = await world.in_session(session, attempts.begin, attempt, results)
            except Exception as error:  # noqa: BLE001 - told by `unwritten`
                await self._roll_back(session, series)
                results[token] = await world.run_blocking(attempts.unwritten, attempt, error)
                return []
            if begun in _NOT_OURS:
                await self._roll_back(session, series)
                return _to_receive(attempt, begun)
            try:
                if has_run := begun is AttemptStart.RUN:
                    await self._answer(session, attempt)
                chains = series is not None and is_followed and not attempt.receipt
                await world.in_session(session, attempts.complete, attempt, has_run, chains)
            except Exception as raised:  # noqa: BLE001 - judged by `fail`
                run = SharedTransaction([attempt])
                run.begin(attempt)
                run.fail(cause := await self._cause_of(session, raised))
                await self._roll_back(session, series)
                await self._settle(session, run)
                if token not in results:
                    results[token] = await world.run_blocking(attempts.fail, attempt, cause)
            else:
                results[token] = DONE
                if series is not None:
                    series.keep(is_needed=is_followed)
        return []

    async def _roll_back(self, session: Any, series: ConnectionOfSeries | None) -> None:
        """Roll back; what is recorded next may need the connection's place in the pool."""
        await self._world.in_session(session, HandlerSession.rollback)
        if series is not None:
            series.release()

    async def _answer(self, session: Any, attempt: Attempt) -> None:
        """Call the handler and the hooks around it. Its transaction stays open."""
        consumer, hooks, world = self._attempts.consumer, self._attempts.hooks, self._world
        plan, message = consumer.plan, attempt.message
        arguments = _arguments(plan, attempt, session)
        context = _passed_on(hooks, message)
        inner = world.sync_session(session)
        with inner.held(), ExitStack() as stack:
            if context is not None:  # the usual case, and the cheaper way
                stack.callback(contexts.detach, contexts.attach(context))
            elif not stack.enter_context(observed(hooks, consumer.group, message)):
                return
            try:
                answer = await world.call(plan.function, **arguments)
            except Exception:
                raise
            except BaseException as error:  # sys.exit() in a handler would end the loop's thread
                if world.is_ended_by(error):
                    raise
                raise HandlerExit(repr(error)) from error
            if inner.is_in_doubt:
                await world.in_session(session, lambda _: inner.check_transaction(undo=False))
            if answer is not None:
                check_answer(answer)

    async def _cause_of(self, session: Any, raised: Exception) -> Exception:
        if not self._world.sync_session(session).is_in_doubt:
            return raised
        return await self._world.in_session(session, HandlerSession.cause_of, raised)

    async def _settle(self, session: Any, run: SharedTransaction) -> None:
        world, inner = self._world, self._world.sync_session(session)
        while wait := await world.run_blocking(settle, self._attempts, inner, run, self._results):
            await world.pause(wait)


def _release(_session: HandlerSession, savepoint: SessionTransaction) -> None:
    savepoint.commit()


def _undo(_session: HandlerSession, savepoint: SessionTransaction) -> None:
    savepoint.rollback()


def _to_receive(attempt: Attempt, begun: AttemptStart) -> list[Attempt]:
    return [replace(attempt, receipt=True)] if begun is AttemptStart.RECEIVE else []


def _arguments(plan: CallPlan, attempt: Attempt, session: Any) -> dict[str, Any]:
    """Return the keyword arguments of one call.

    Raises:
        SchemaTooNew: when that is what there is instead of a payload.
    """
    if isinstance(attempt.payload, SchemaTooNew):
        raise attempt.payload
    given = {}
    if plan.payload is not None:
        given[plan.payload] = attempt.payload
    if plan.session is not None:
        given[plan.session] = session
    if plan.message is not None:
        given[plan.message] = attempt.message
    return given


def _passed_on(hooks: Hooks, message: ReceivedMessage) -> Any:
    """Return the trace context of a message, if nothing else observes the call; otherwise None."""
    first, *others = hooks.middleware
    if others or not isinstance(first, OpenTelemetryMiddleware):
        return None
    otel = trace_context.otel
    # As `is_recorded`, and a message without a context is not read: the hot path.
    if not isinstance(first.provider or otel.get_tracer_provider(), otel.ProxyTracerProvider):
        return None
    is_usual = propagators.get_global_textmap() is trace_context.reads_fields_only
    if is_usual and _TRACE_FIELDS.isdisjoint(message.properties):
        return contexts.Context()
    return extracted(message.properties, message.topic)


def check_answer(answer: object) -> None:
    """Judge what a handler returned: `Retry` and `Reject` are raised, anything else is "consumed".

    Raises:
        Retry, Reject: when the handler returned it.
        UsageError: when `answer` still waits to be run (an awaitable, a generator), or is a list of
            outcomes.
    """
    if is_outcome(answer):
        outcome = checked_outcome(answer)
        if isinstance(outcome, RAISED):  # without the frames of whoever raised the same before
            raise outcome.with_traceback(None)
        return
    if isinstance(answer, list | tuple) and _says(answer):
        raise UsageError(
            f"a handler returned {answer!r:.200}: it is called for one message, return its outcome"
        )
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # or it would warn that nobody awaited it
        raise UsageError(
            f"a handler returned {type(answer).__name__!r}, which is not "
            "awaited; a decorator of an async def must be an async def itself"
        )


def _says(answers: Sequence[object]) -> bool:
    """Say whether these are outcomes, and one of them is not that all is done."""
    if not answers or not is_outcome(answers[0]):
        return False
    return any(is_outcome(each) and isinstance(checked_outcome(each), RAISED) for each in answers)
