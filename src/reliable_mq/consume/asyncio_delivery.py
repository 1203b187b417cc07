"""One consumer's deliveries: claim, run, settle. Connects client, Redis and database.

Receives messages from the client's loop; returns one outcome for each. `idempotency.claim` decides
the order of the steps. All deliveries of a process pass one gate, which lets a suspect one run
alone.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from msgspec.structs import asdict, replace

from reliable_mq.client.consuming.thread_handling import HandlerStillRunning
from reliable_mq.consume.asyncio_consumed_lookups import ConsumedLookups
from reliable_mq.consume.handling import HandlerRun
from reliable_mq.consume.payload import decoder_of
from reliable_mq.consume.retry_decider import PUT_OFF, DeliveryOutcome, Results
from reliable_mq.consume.signing import SignatureCheck
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.consume.sql_receipts import (
    Attempt,
    consumed_ids,
    log_postponed,
)
from reliable_mq.database.asyncio_world import AsyncioWorld
from reliable_mq.database.thread_world import ThreadWorld, run
from reliable_mq.errors import InvariantBroken, KeyInvalid
from reliable_mq.idempotency.claim import (
    UNREACHABLE,
    Claim,
    ClaimStep,
    LeaseAnswer,
    attempt_claimed,
    first_step,
)
from reliable_mq.idempotency.lease_store import LeaseEnd, LeaseStore, key_of
from reliable_mq.idempotency.sql_consume_log import LogEntry
from reliable_mq.idempotency.sql_key_log import KeyEntry
from reliable_mq.message import CONFIRM_TO, CONTENT_TYPE, RESENT, ReceivedMessage
from reliable_mq.outbox.cloud_events import contents_of_event
from reliable_mq.outbox.schema import PayloadInvalid, SchemaTooNew
from reliable_mq.outcomes import CONSUMED, Outcome, Reject, Retry, retry_of_ours
from reliable_mq.telemetry import application_events

PATIENCE_SECONDS = 60.0
"""Longest wait for a call, in seconds: a handler that hangs must not stop all others."""


class HandlerGate:
    """Lets the handlers of one process run concurrently, or a single call alone.

    A message that kills its process costs every message that is handled at the same time an
    attempt. So a suspect call asks to run alone: it waits for running calls, and later calls wait
    for it. The gate is for all consumers of the process, on one event loop.

    E2: while a call has its turn to run alone, no other call begins. Calls that still run beside it
    were waited for once, without success.

    Args:
        patience: seconds that a call which must run alone waits for running calls, and that all
            other calls wait for it. Default 60.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._generation = 0
        self._running = 0  # of this generation: the gate still waits for these calls
        self._empty = asyncio.Event()  # no call of this generation is running
        self._empty.set()
        self._turn = asyncio.Lock()
        self._alone: object | None = None  # the call with the turn to run alone
        self._is_alone = False  # it does not wait for running calls any more
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_closed(self) -> bool:
        """Whether a call is alone, or is about to be."""
        return self._alone is not None

    async def opened(self) -> None:
        """Wait until calls may begin."""
        while self.is_closed:
            await self._open.wait()

    def begin(self) -> int:
        """Note that a call begins beside others; pass the result to `end`.

        Raises:
            InvariantBroken: the gate is closed.
        """
        if self.is_closed:
            raise InvariantBroken("E2: a call begins beside one that is alone")
        self._running += 1
        self._empty.clear()
        return self._generation

    def end(self, generation: int) -> None:
        """Note that a call has ended; `generation` is the result of its `begin`."""
        if generation != self._generation:
            return  # the gate does not wait for it any more
        self._running -= 1
        if not self._running:
            self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Run the block after running calls have ended in time; one such block at a time.

        If the block takes longer than `patience`, its turn is over: others begin beside it.
        """
        await self._turn.acquire()
        self._alone = turn = object()
        self._open.clear()
        try:
            await self._drain()
            self._is_alone = True
            end = asyncio.get_running_loop().call_later(self._patience, self._end_turn, turn)
            try:
                yield
            finally:
                end.cancel()
        finally:
            self._end_turn(turn)

    async def _drain(self) -> None:
        """Wait for running calls; calls that do not end in time are not waited for again."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), self._patience)
        if self._running:
            self._generation += 1
            self._running = 0
            self._empty.set()

    def _end_turn(self, turn: object) -> None:
        """Open the gate, unless this turn is over already."""
        if self._alone is turn:
            self._alone, self._is_alone = None, False
            self._open.set()
            self._turn.release()

    def invariants(self) -> None:
        """Check the invariant of the class."""
        if self._is_alone and self._running:
            raise InvariantBroken(f"E2: {self._running} calls began beside one that is alone")
        if self._running < 0 or self._empty.is_set() != (self._running == 0):
            raise InvariantBroken(f"E2: {self._running} calls run, but the event says otherwise")
        if self._open.is_set() == self.is_closed:
            raise InvariantBroken("E2: the event says otherwise than the gate's state")


log = logging.getLogger(__name__)

HELD_SECONDS_MIN = 0.05

_json_of = decoder_of(Any, "idempotent_by")


class MessageProcessing:
    """Handles the deliveries to one consumer.

    Invariant S4: a message without a valid signature gets no claim, no row, and no note in a stub.

    Invariant: every delivery gets exactly one outcome. A token is in `running` exactly while its
    handler may be running.

    Args:
        attempts: the database's part.
        leases: Redis's part, or another store's; None: the database decides alone.
        threads: runs `def` handlers.
        gate: the gate for all handlers of this process.
        seal: checks signatures; None: they are not checked.
    """

    def __init__(
        self,
        attempts: ConsumeTransaction,
        leases: LeaseStore | None,
        threads: Executor,
        gate: HandlerGate,
        seal: SignatureCheck | None = None,
    ) -> None:
        self._seal = seal
        self._attempts = attempts
        self._consumer = attempts.consumer
        self._leases = leases
        self._first_unreachable: ClaimStep | None = None
        self._first_unreachable = self._first_step(UNREACHABLE)  # always the same
        self._world = ThreadWorld(attempts.database)
        self._threads = threads
        self._gate = gate
        ask = partial(consumed_ids, attempts.database.reading_engine, attempts.log)
        self._looks = ConsumedLookups(ask, threads)
        self._running: dict[str, tuple[float, LogEntry]] = {}
        self._renewer: asyncio.Task[None] | None = None
        # A name per object, not per module: a forked child shares the module with its parent.
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._numbers = itertools.count(1)

    async def handle(self, messages: Sequence[ReceivedMessage]) -> list[Outcome]:
        """Handle 1..batch messages; the client's `Handler`.

        A message with a wrong signature becomes a dead letter before anything else happens. A
        claim, a row or a note at the stub would belong to the message whose id it uses.
        """
        if self._seal is None:
            return await self._handle_sound(messages)
        faults = [self._seal.fault_of(message) for message in messages]
        sound = [message for message, fault in zip(messages, faults, strict=True) if not fault]
        outcomes = iter(await self._handle_sound(sound) if sound else ())
        return [Reject(fault) if fault else next(outcomes) for fault in faults]

    async def _handle_sound(self, messages: Sequence[ReceivedMessage]) -> list[Outcome]:
        gate = self._gate
        if gate.is_closed:
            await gate.opened()
        generation = gate.begin()
        try:
            settled = await self._handle(messages)
        finally:
            gate.end(generation)
        for place, message in enumerate(messages):
            if settled[place].is_put_off:
                async with gate.exclusive():
                    (settled[place],) = await self._handle([message], alone=True)
        return [each.outcome for each in settled]

    async def _handle(
        self, messages: Sequence[ReceivedMessage], *, alone: bool = False
    ) -> list[DeliveryOutcome]:
        entries = [self._entry(message) for message in messages]
        claims = await self._claim(entries)
        if len(messages) > 1 and any(claim.in_doubt for claim in claims):
            return await self._handle_apart(messages, entries, claims)
        results: Results = {}
        attempts = []
        consumed = await self._consumed(entries, claims, results)
        for message, entry, claim in zip(messages, entries, claims, strict=True):
            if entry.token in results:
                continue
            is_consumed = entry.message_id in consumed
            attempt = await self._attempt(message, entry, claim, results, is_consumed, alone)
            if attempt is not None:
                attempts.append(attempt)
        if attempts:
            results.update(await self._run(attempts))
        if len(results) != len(entries):
            raise InvariantBroken(f"{len(entries)} deliveries, {len(results)} outcomes")
        for entry in entries:
            self._end(entry, results[entry.token].lease_end)
        return [results[entry.token] for entry in entries]

    async def _handle_apart(
        self,
        messages: Sequence[ReceivedMessage],
        entries: Sequence[LogEntry],
        claims: Sequence[Claim],
    ) -> list[DeliveryOutcome]:
        """Handle a batch in which some messages may have killed their process: these alone, first.

        All claims are released, and each is claimed again directly before it is handled: a message
        that kills its process again must not cost the others an attempt. The least tried go first,
        so that innocent messages are done before the culprit's turn.
        """
        for entry, claim in zip(entries, claims, strict=True):
            if claim.lease in (LeaseAnswer.FIRST, LeaseAnswer.AGAIN):
                self._end(entry, "back")
        places = range(len(messages))
        suspects = [place for place in places if claims[place].in_doubt]
        settled: dict[int, DeliveryOutcome] = {}
        for place in sorted(suspects, key=lambda place: claims[place].attempt):
            (settled[place],) = await self._handle([messages[place]])
        others = [place for place in places if place not in settled]
        if others:
            handled = await self._handle([messages[place] for place in others])
            settled.update(zip(others, handled, strict=True))
        return [settled[place] for place in places]

    def _end(self, entry: LogEntry, lease_end: LeaseEnd | None) -> None:
        """Report the end of a claim to Redis, if it was ours."""
        if self._leases is not None and lease_end is not None:
            self._leases.settle(key_of(entry.group, entry.message_id), entry.token, lease_end)

    def start(self) -> None:
        """Begin to renew the leases of long handlers. Needs a running loop."""
        self._renewer = asyncio.create_task(self._renew_forever())

    async def close(self) -> None:
        """Stop renewing leases."""
        if self._renewer is not None:
            self._renewer.cancel()
            await asyncio.wait([self._renewer])

    def _entry(self, message: ReceivedMessage) -> LogEntry:
        telling, told_to = self._attempts.notices, message.properties.get(CONFIRM_TO, ":")
        return LogEntry(
            group=self._consumer.group,
            message_id=message.message_id or message.offset_message_id,
            topic=message.topic,
            broker_name=message.queue.broker_name,
            queue_id=message.queue.queue_id,
            offset=message.queue_offset,
            token=f"{self._name}-{next(self._numbers)}",
            confirm_to="" if told_to.startswith(telling.here) else telling.address(message),
            key=" ".join(message.keys),
        )

    async def _claim(self, entries: Sequence[LogEntry]) -> list[Claim]:
        if self._leases is None:
            return [UNREACHABLE] * len(entries)
        return await self._leases.claim(
            [(key_of(entry.group, entry.message_id), entry.token) for entry in entries],
            self._consumer.lease,
        )

    async def _consumed(
        self, entries: Sequence[LogEntry], claims: Sequence[Claim], results: Results
    ) -> set[str]:
        """Read the rows of messages that Redis calls done; settle these if the database is away."""
        done = [
            entry
            for entry, claim in zip(entries, claims, strict=True)
            if claim.lease is LeaseAnswer.DONE
        ]
        if not done:
            return set()
        try:
            return await self._looks.consumed(done)
        except Exception as error:  # noqa: BLE001 - logged there
            settled = self._attempts.unhandled(error)
            results.update((entry.token, settled) for entry in done)
            return set()

    async def _attempt(
        self,
        message: ReceivedMessage,
        entry: LogEntry,
        claim: Claim,
        results: Results,
        is_consumed: bool,
        alone: bool,
    ) -> Attempt | None:
        """Return the attempt that a claim allows, or settle the delivery without one."""
        consumer = self._consumer
        step = self._first_step(claim, is_consumed=is_consumed)
        if step is ClaimStep.ACKNOWLEDGE:
            results[entry.token] = self._suppressed(message, entry)
            return None
        if step is ClaimStep.LATER:
            log_postponed(entry)
            wait = max(claim.wait, HELD_SECONDS_MIN)
            results[entry.token] = DeliveryOutcome(retry_of_ours(wait, counts=False))
            return None
        if claim.in_doubt and not alone and 1 < claim.attempt == consumer.max_attempts:
            results[entry.token] = PUT_OFF
            return None
        if claim.attempt > 1:
            entry = replace(entry, attempt=attempt_claimed(claim, consumer.max_attempts))
        # Done, but its handler runs: its row was lost, and other effects of it are unknown.
        if claim.in_doubt or claim.lease is LeaseAnswer.DONE:
            message, entry = replace(message, in_doubt=True), replace(entry, in_doubt=True)
        attempt = Attempt(entry, message, None, step is not ClaimStep.ONE_COMMIT, alone=alone)
        loop = asyncio.get_running_loop()
        if step is ClaimStep.GIVE_UP:
            settled = await loop.run_in_executor(self._threads, self._attempts.use_up, attempt)
            if settled is not None:
                results[entry.token] = settled
                return None
        if message.fault:
            reason = f"the payload does not validate: {message.fault}"
        else:
            try:
                payload = self._payload(message)
                return replace(attempt, payload=payload, key=self._key(entry, payload, message))
            except PayloadInvalid as error:
                reason = f"the payload does not validate: {error}"
            except SchemaTooNew as error:  # a failed attempt, counted like any other
                return replace(attempt, payload=error)
            except KeyInvalid as error:
                reason = f"no business key: {error}"
        results[entry.token] = await loop.run_in_executor(
            self._threads, self._attempts.give_up, attempt, reason
        )
        return None

    def _payload(self, message: ReceivedMessage) -> Any:
        decode = self._consumer.plan.decode
        if self._consumer.is_enveloped:
            body, content_type = contents_of_event(message)
            return bytes(body) if decode is None else decode(body, content_type)
        if decode is None:
            return bytes(message.body)
        return decode(message.body, message.properties.get(CONTENT_TYPE, ""))

    def _first_step(self, claim: Claim, *, is_consumed: bool = False) -> ClaimStep:
        if claim is UNREACHABLE and self._first_unreachable is not None:
            return self._first_unreachable
        return first_step(
            claim,
            attempts_max=self._consumer.max_attempts,
            log_receipt=self._consumer.log_receipt,
            is_consumed=is_consumed,
        )

    def _suppressed(self, message: ReceivedMessage, entry: LogEntry) -> DeliveryOutcome:
        """Settle a delivery of a message that already had its effect."""
        self._attempts.suppressed.log(entry)
        if RESENT in message.properties:  # its sender has missed the notice
            self._attempts.notices.consumed([entry])
        return DeliveryOutcome(CONSUMED)

    def _key(self, entry: LogEntry, payload: Any, message: ReceivedMessage) -> KeyEntry | None:
        """Return the entry for the table of business keys, if the consumer has keys."""
        if self._consumer.read_key is None:
            return None
        reader = self._consumer.read_key
        if self._consumer.plan.payload is None and reader.needs_payload:
            is_event = self._consumer.is_enveloped
            contents = contents_of_event(message) if is_event else None
            payload = _json_of(*(contents or (message.body, message.content_type)))
        key = reader.read(payload, message)
        fields = asdict(entry) | {"message_id": key.digest, "attempt": 1, "confirm_to": ""}
        return KeyEntry(**fields, holder=entry.message_id, shown=key.shown)

    async def _run(self, attempts: Sequence[Attempt]) -> Results:
        """Run the attempts of different messages; a second copy of a message is put off."""
        by_id: dict[str, Attempt] = {}
        copies: Results = {}
        for attempt in attempts:
            if by_id.setdefault(attempt.entry.message_id, attempt) is not attempt:
                again = Retry(HELD_SECONDS_MIN, counts=False)
                copies[attempt.entry.token] = DeliveryOutcome(again, "back")
        wanted = list(by_id.values())
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._running |= {each.entry.token: (started, each.entry) for each in wanted}
        try:
            if self._consumer.plan.is_async:
                world = AsyncioWorld(self._attempts.database)
                results = await HandlerRun(world, self._attempts).handle(wanted)
            else:
                flow = HandlerRun(self._world, self._attempts).handle
                results = await loop.run_in_executor(self._threads, run, flow, wanted)
        except asyncio.CancelledError as error:
            if self._consumer.plan.is_async:
                raise
            raise HandlerStillRunning from error  # nothing else with its ordering key may begin
        finally:
            for each in wanted:
                self._running.pop(each.entry.token, None)
                self._attempts.end_renewal(each.entry.token)
            times, took = self._attempts.database.handling_times, loop.time() - started
            if took > times.longest.get(self._consumer.group, 0.0):
                times.note_handled(self._consumer.group, took)
        return results | copies

    async def _renew_forever(self) -> None:
        pause = self._consumer.lease / 3
        while True:
            await asyncio.sleep(pause)
            try:
                await self._renew(asyncio.get_running_loop().time() - pause / 2)
            except Exception:  # noqa: BLE001 - it is logged
                application_events.LEASES_NOT_RENEWED.log(
                    log, traceback_of=True, group=self._consumer.group
                )
            with suppress(Exception):  # the database's users report that it is away
                await asyncio.to_thread(self._attempts.database.clock.measured_now)

    async def _renew(self, started_before: float) -> None:
        """Renew the leases of handlers that began before `started_before`."""
        long = [entry for started, entry in self._running.values() if started < started_before]
        if self._leases is not None:
            for each in long:
                key = key_of(each.group, each.message_id)
                self._leases.renew(key, each.token, self._consumer.lease)
        if long:
            await asyncio.to_thread(self._attempts.renew, [each.token for each in long])
