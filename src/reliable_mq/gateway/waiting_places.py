"""How many calls wait at brokers for messages: in all, and of one user or address. Pure."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_mq.errors import InvariantBroken
from reliable_mq.gateway.codes import Code, RpcRefused


class WaitingPlaces:
    """Places for calls that wait.

    Invariant: `_taken` is the sum of `_by_payer`, which has no zeros.

    Args:
        what: the calls, for refusals.
        most: how many may wait.
        most_of_one: how many of one user; if nobody signs, of one address.
    """

    def __init__(self, what: str, most: int, most_of_one: int) -> None:
        self._what = what
        self._most, self._most_of_one = most, most_of_one
        self._taken = 0
        self._by_payer: Counter[tuple[str, str]] = Counter()

    @property
    def taken(self) -> int:
        """How many calls wait."""
        return self._taken

    @contextmanager
    def place(self, payer: tuple[str, str]) -> Iterator[None]:
        """Take a place while the block runs.

        Raises:
            RpcRefused: when there is none.
        """
        if self._taken >= self._most or self._by_payer[payer] >= self._most_of_one:
            raise RpcRefused(
                Code.TOO_MANY_REQUESTS,
                f"{self._taken} {self._what} wait already, {self._by_payer[payer]} of them yours",
            )
        self._taken += 1
        self._by_payer[payer] += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._by_payer[payer] -= 1
            if not self._by_payer[payer]:
                del self._by_payer[payer]

    def invariants(self) -> None:
        """Check the counts.

        Raises:
            InvariantBroken: when they differ.
        """
        if self._by_payer.total() != self._taken or not all(self._by_payer.values()):
            raise InvariantBroken(f"{self._taken} places are taken, not {self._by_payer}")
