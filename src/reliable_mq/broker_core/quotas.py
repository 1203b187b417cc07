"""Quotas: how many messages and bytes a second each topic, group or user may have. Pure.

Receives names, counts and the time. A quota is a token bucket of one second. Whoever finds it empty
is refused, and told when to come again. A request may take more than is left, once: so a quota that
is smaller than a message still lets one through, and the next one waits longer.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import QUOTAS_TEXT_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.java_int import I32_MAX
from reliable_mq.wire.remote_faults import RETRY_AFTER_MS

_BUCKETS_MAX = 100_000  # above, those that are full are forgotten: a new one is full, too


class Rate(NamedTuple):
    """A limit for each second; 0: none."""

    messages: int = 0
    size: int = 0


_ENDLESS = Rate()


class _Bucket(msgspec.Struct, gc=False):
    messages: float
    size: float
    at_ms: int


class Quotas:
    """The buckets of all topics, of all groups, or of all users.

    Invariant P1: no bucket has more than one second of its rate.

    Args:
        what: "topic", "group" or "user", for refusals.
        code: of refusals.
        every: the limit of each name.
        named: other limits, by name.
    """

    def __init__(
        self, what: str, code: ResponseCode, every: Rate, named: Mapping[str, Rate]
    ) -> None:
        self._what = what
        self._code = code
        self._every = every
        self._named = named
        self._buckets: dict[str, _Bucket] = {}
        self.refused = 0  # requests, since the quotas were set

    def take(self, name: str, messages: int, size: int, now_ms: int) -> None:
        """Take from the bucket of a name.

        Raises:
            RequestRefused: when it is empty. The reply says after how many ms it is not.
        """
        rate = self._named.get(name, self._every)
        if rate == _ENDLESS:
            return
        bucket = self._buckets.get(name) or self._begin(name, rate, now_ms)
        _fill(bucket, rate, now_ms)
        wait_ms = max(_wait_ms(bucket.messages, rate.messages), _wait_ms(bucket.size, rate.size))
        if wait_ms:
            self.refused += 1
            raise RequestRefused(
                self._code,
                f"[QUOTA]broker busy, start flow control for a while: {self._what} {name} has "
                f"{rate.messages} messages and {rate.size} bytes a second (0: no limit)",
                {RETRY_AFTER_MS: str(wait_ms)},
            )
        bucket.messages -= messages
        bucket.size -= size

    def charge(self, name: str, messages: int, size: int) -> None:
        """Take more for a request that was let through."""
        bucket = self._buckets.get(name)
        if bucket is not None:
            bucket.messages -= messages
            bucket.size -= size

    def _begin(self, name: str, rate: Rate, now_ms: int) -> _Bucket:
        if len(self._buckets) >= _BUCKETS_MAX:
            for each, bucket in list(self._buckets.items()):
                own = self._named.get(each, self._every)
                _fill(bucket, own, now_ms)
                if bucket.messages >= own.messages and bucket.size >= own.size:
                    del self._buckets[each]
        bucket = self._buckets[name] = _Bucket(rate.messages, rate.size, now_ms)
        return bucket

    def invariants(self) -> None:
        """Check P1.

        Raises:
            InvariantBroken: when a bucket has too much.
        """
        for name, bucket in self._buckets.items():
            rate = self._named.get(name, self._every)
            if bucket.messages > rate.messages or bucket.size > rate.size:
                raise InvariantBroken(f"P1: the bucket of {self._what} {name} has {bucket}")


def _fill(bucket: _Bucket, rate: Rate, now_ms: int) -> None:
    """Add what has come since the last time; nothing if the clock went back."""
    seconds = max(now_ms - bucket.at_ms, 0) / 1000
    bucket.messages = min(bucket.messages + seconds * rate.messages, rate.messages)
    bucket.size = min(bucket.size + seconds * rate.size, rate.size)
    bucket.at_ms = now_ms


def _wait_ms(balance: float, rate: int) -> int:
    """Return after how many ms a balance is above zero; 0: it is, or there is no limit."""
    return int(-balance * 1000 / rate) + 1 if rate and balance <= 0 else 0


def parse_quotas(text: str) -> dict[str, Rate]:
    """Return the limits of names: `orders:100:1048576;audit:0:5000`.

    Raises:
        ValueError: when it does not parse; the text says where.
    """
    if len(text) > QUOTAS_TEXT_MAX:
        raise ValueError(f"it has {len(text)} characters, at most {QUOTAS_TEXT_MAX} are allowed")
    found: dict[str, Rate] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        name, *numbers = part.split(":")
        if not name or len(numbers) != len(Rate._fields):
            raise ValueError(f"{part[:80]!r}: write NAME:MESSAGES:BYTES, of one second each")
        if not all(each.isascii() and each.isdecimal() and len(each) < 11 for each in numbers):
            raise ValueError(f"{part[:80]!r}: a limit is a whole number; 0: no limit")
        rate = Rate(*map(int, numbers))
        if max(rate) > I32_MAX:
            raise ValueError(f"{part[:80]!r}: a limit is at most {I32_MAX}")
        found[name] = rate
    return found


def quotas_of(what: str, code: ResponseCode, every: Rate, text: str) -> Quotas | None:
    """Return the quotas of some settings; None: there is no limit."""
    named = parse_quotas(text)
    if every == _ENDLESS and not named:
        return None
    return Quotas(what, code, every, named)
