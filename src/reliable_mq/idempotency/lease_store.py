"""The store of leases that the consumer's protocol needs: Redis, or an application's own.

If it forgets, that costs time, never an effect: the consume log decides. The log is read even if
the store says "done", because the store may remember what the database has lost. A store must not
invent leases, though: `reliable_mq.testing.contracts.LeaseStoreContract` tests these rules.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal, Protocol, runtime_checkable

from reliable_mq.idempotency.claim import Claim
from reliable_mq.old_names import moved

LeaseEnd = Literal["done", "fail", "back"]
"""The end of a claim: its row says CONSUMED; its failure is in the consume log; it was not an
attempt at all."""


@runtime_checkable
class LeaseStore(Protocol):
    """Leases on keys, one per (consumer group, message). Belongs to one event loop."""

    async def claim(self, claims: Sequence[tuple[str, str]], lease: float) -> list[Claim]:
        """Claim each (key, token) for `lease` seconds; return the answers in order.

        Never raises because the store is away: then the answers are `UNREACHABLE`. The store counts
        the attempt before the handler runs. The count outlives the lease of a vanished owner. If
        the same token asks again, it gets the same attempt.
        """
        ...

    def settle(self, key: str, token: str, lease_end: LeaseEnd) -> None:
        """Report the end of a claim, soon. From a token that lost the claim, only "done" counts."""
        ...

    def renew(self, key: str, token: str, lease: float) -> None:
        """Extend a claim to `lease` seconds from now, soon, if the token still has it."""
        ...

    async def close(self) -> None:
        """Write the remaining ends and release all resources."""
        ...


@runtime_checkable
class LeasesBehindBreaker(Protocol):
    """Leases in servers that are not asked for a while after they did not answer."""

    @property
    def is_reachable(self) -> bool:
        """Whether they are asked now. Safe in any thread."""
        ...


def key_of(group: str, message_id: str) -> str:
    """Return the key of one consumer group and message."""
    return f"rmq:{group}:{message_id}"


__getattr__ = partial(moved, __name__)
