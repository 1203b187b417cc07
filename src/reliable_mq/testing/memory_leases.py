"""Leases in memory: what Redis keeps, for tests without one. Passes the contract of a real store.

Receives claims and their ends; hands on what Redis would say of them. Several `MemoryLeases` over
one `LeaseTable` are several processes.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from reliable_mq.idempotency.claim import UNREACHABLE, Claim, LeaseAnswer
from reliable_mq.idempotency.lease_store import LeaseEnd


class _Value(msgspec.Struct):
    """One key: done, or an attempt with its owner; the words of `claim.lua`."""

    attempt: int = 0
    until: float = 0.0
    owner: str = ""
    in_doubt: bool = False
    is_done: bool = False


class LeaseTable:
    """What is remembered. `is_away` makes it unreachable, `flush` makes it forget.

    Args:
        clock: seconds on any clock that does not go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.is_away = False
        self._values: dict[str, _Value] = {}

    def flush(self) -> None:
        """Forget everything."""
        self._values.clear()

    def claim(self, key: str, token: str, lease: float) -> Claim:
        """Claim one key."""
        if self.is_away:
            return UNREACHABLE
        now = self.clock()
        value = self._values.setdefault(key, _Value())
        if value.is_done:
            return Claim(LeaseAnswer.DONE)
        if value.owner and value.owner != token:
            if value.until > now:
                return Claim(LeaseAnswer.HELD, value.attempt, wait=value.until - now)
            value.in_doubt = True
        if value.owner != token:
            value.attempt += 1
        value.owner, value.until = token, now + lease
        word = LeaseAnswer.AGAIN if value.attempt > 1 else LeaseAnswer.FIRST
        return Claim(word, value.attempt, value.in_doubt)

    def settle(self, key: str, token: str, lease_end: LeaseEnd) -> None:
        """End one claim."""
        if self.is_away:
            return
        if lease_end == "done":
            self._values[key] = _Value(is_done=True)
            return
        value = self._values.get(key)
        if value is None or value.owner != token:
            return
        value.attempt -= 1
        value.owner = ""
        if lease_end == "fail" or value.attempt == 0:
            del self._values[key]

    def renew(self, key: str, token: str, lease: float) -> None:
        """Let one claim hold for longer."""
        value = self._values.get(key)
        if not self.is_away and value is not None and value.owner == token:
            value.until = self.clock() + lease


class MemoryLeases:
    """One process's view of a `LeaseTable`; a `LeaseStore`.

    Args:
        table: what is remembered.
        step: told of what another process could notice, see `crash_switch`.
    """

    def __init__(self, table: LeaseTable, step: Callable[[str], None] = lambda _: None) -> None:
        self._table = table
        self._step = step

    async def claim(self, claims: Sequence[tuple[str, str]], lease: float) -> list[Claim]:
        """See `LeaseStore.claim`."""
        self._step("before claim")
        answers = [self._table.claim(key, token, lease) for key, token in claims]
        self._step("after claim")
        return answers

    def settle(self, key: str, token: str, lease_end: LeaseEnd) -> None:
        """See `LeaseStore.settle`."""
        self._step(f"before {lease_end}")
        self._table.settle(key, token, lease_end)

    def renew(self, key: str, token: str, lease: float) -> None:
        """See `LeaseStore.renew`."""
        self._table.renew(key, token, lease)

    async def close(self) -> None:
        """See `LeaseStore.close`."""
