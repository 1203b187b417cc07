"""Leases in Redis. Receives claims and their ends; returns Redis's answers.

Requests that arrive during a round trip share the next one: claims of concurrent deliveries, and
the "done" of finished ones. If Redis does not answer, a claim is `UNREACHABLE` at once (circuit
breaker), and the database decides alone. An end that cannot be written is dropped: the lease
expires by itself, and the row says the rest.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import islice
from typing import Literal, NamedTuple

from redis.exceptions import NoScriptError

from reliable_mq.idempotency.breaker import Circuit, CircuitBreaker
from reliable_mq.idempotency.claim import UNREACHABLE, Claim, LeaseAnswer
from reliable_mq.idempotency.lease_store import LeaseEnd
from reliable_mq.idempotency.redis_servers import FAULTS, ScriptCall, script_of, servers_of
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.01
"""How long an end waits for a claim to share its round trip, in seconds."""


class _Asked(NamedTuple):
    claims: Sequence[tuple[str, str]]
    lease_ms: int
    answers: asyncio.Future[list[Claim]]


class _Ended(NamedTuple):
    key: str
    token: str
    lease_end: LeaseEnd | Literal["renew"]
    lease_ms: int = 0


class RedisLeases:
    """Claims and their ends, many per round trip. Belongs to one event loop.

    Invariant: at most one round trip is in flight; later requests wait for the next one.

    Args:
        url: `redis://host:port/db`, `rediss://…`, `unix://…`, `redis+sentinel://…` or
            `redis+cluster://…`, see `redis_urls`.
        duplicate_window: seconds that "done" is kept. It only affects speed. A lease is no longer
            than this.
        timeout: seconds after which Redis counts as unreachable. Default 1.

    Raises:
        ConfigurationError: the URL is not a Redis URL.
    """

    def __init__(self, url: str, *, duplicate_window: float, timeout: float = 1.0) -> None:
        self._servers = servers_of(url, timeout=timeout)
        self._window_ms = int(duplicate_window * 1000)
        self._breaker = CircuitBreaker()
        self._asked: list[_Asked] = []
        self._ended: list[_Ended] = []
        self._round: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        here = files("reliable_mq.idempotency")
        self._claiming = script_of(here.joinpath("claim.lua").read_text())
        self._settling = script_of(here.joinpath("settle.lua").read_text())
        self._are_loaded = False

    @property
    def is_reachable(self) -> bool:
        """Whether the circuit is closed. Safe in any thread."""
        return self._breaker.state is Circuit.CLOSED

    async def claim(self, claims: Sequence[tuple[str, str]], lease: float) -> list[Claim]:
        """Claim each (key, token); return Redis's answers in order. Never raises errors of Redis.

        Args:
            claims: the (key, token) pairs.
            lease: seconds that these claims last without a renewal.
        """
        answers: asyncio.Future[list[Claim]] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(claims, _milliseconds(lease), answers))
        self._start_round()
        return await answers

    def settle(self, key: str, token: str, lease_end: LeaseEnd) -> None:
        """Report the end of a claim to Redis, with the next claim or a little later."""
        self._end(_Ended(key, token, lease_end))

    def renew(self, key: str, token: str, lease: float) -> None:
        """Extend a claim to `lease` seconds from now, with the next claim or a little later."""
        self._end(_Ended(key, token, "renew", _milliseconds(lease)))

    def _end(self, ended: _Ended) -> None:
        self._ended.append(ended)
        if self._round is None and self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(SETTLE_SECONDS, self._start_round)

    async def close(self) -> None:
        """Write the remaining ends and close the connections."""
        if self._ended:
            self._start_round()
        while self._round is not None:
            await asyncio.wait([self._round])
        with contextlib.suppress(*FAULTS):
            await self._servers.close()

    def _start_round(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._round is None:
            self._round = asyncio.create_task(self._rounds())

    async def _rounds(self) -> None:
        try:
            while self._asked or self._ended:
                asked, self._asked = self._asked, []
                ended, self._ended = self._ended, []
                try:
                    answers = await self._ask(asked, ended)
                except BaseException as error:
                    for each in asked:  # each waiting caller gets the error
                        if not each.answers.done():
                            each.answers.set_exception(error)
                    if not asked or isinstance(error, asyncio.CancelledError):
                        raise
                    continue
                rest = iter(answers)
                for each in asked:
                    its_own = list(islice(rest, len(each.claims)))
                    if not each.answers.done():
                        each.answers.set_result(its_own)
        finally:
            self._round = None

    async def _ask(self, asked: Sequence[_Asked], ended: Sequence[_Ended]) -> list[Claim]:
        """Make one round trip; without an answer every claim is unreachable."""
        now = asyncio.get_running_loop().time()
        if not self._breaker.allows(now):
            return [UNREACHABLE] * sum(len(each.claims) for each in asked)
        try:
            try:
                answers = await self._call(asked, ended)
            except FAULTS:  # try again at once: after a restart the kept connection is broken
                answers = await self._call(asked, ended)
        except FAULTS as error:
            self._breaker.record_failure(asyncio.get_running_loop().time())
            application_events.REDIS_LOST.log(log, error=error)
            return [UNREACHABLE] * sum(len(each.claims) for each in asked)
        except BaseException:
            self._breaker.record_failure(asyncio.get_running_loop().time())
            raise
        if self._breaker.state is not Circuit.CLOSED:
            application_events.REDIS_BACK.log(log)
        self._breaker.succeeded()
        return [claim_of(answer) for answer in answers]

    async def _call(self, asked: Sequence[_Asked], ended: Sequence[_Ended]) -> list[bytes]:
        window = self._window_ms
        settling = ScriptCall(
            self._settling,
            (window, window),
            [each.key for each in ended],
            [(each.token, each.lease_end, each.lease_ms) for each in ended],
        )
        claiming = ScriptCall(
            self._claiming,
            (window,),
            [key for each in asked for key, _ in each.claims],
            [(token, each.lease_ms) for each in asked for _, token in each.claims],
        )
        calls = [each for each in (settling, claiming) if each.keys]
        try:
            await self._load()
            answers = await self._servers.run(calls)
        except NoScriptError:  # restarted, flushed, or promoted: scripts are not replicated
            self._are_loaded = False
            await self._load()
            answers = await self._servers.run(calls)
        return answers[-1] if claiming.keys else []

    async def _load(self) -> None:
        if not self._are_loaded:
            for script in (self._settling, self._claiming):
                await self._servers.load(script)
            self._are_loaded = True


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


@lru_cache(maxsize=64)
def claim_of(answer: bytes) -> Claim:
    """Return the claim in one answer of `claim.lua`; cached, because most answers are equal."""
    word, attempt, in_doubt, wait_ms = answer.decode().split(",")
    return Claim(LeaseAnswer(word), int(attempt), in_doubt == "1", int(wait_ms) / 1000)
