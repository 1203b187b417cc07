"""What the consumer's protocol asks of the place where leases lie: Redis, or somebody else's.

Whatever it forgets costs time, never an effect: the consume log decides. It is asked also where the
store says "done", because the store may remember what the database has lost. A store must not
invent leases, though:
`reliable_mq.testing.contracts.LeaseStoreContract` holds what that means.
"""

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from reliable_mq.idempotency.claim import Claim

Fate = Literal["done", "fail", "back"]
"""What became of a claim: its row says CONSUMED; its failure is in the consume log; it was not an
attempt at all."""


@runtime_checkable
class LeaseStore(Protocol):
    """Leases on keys, one per (consumer group, message). Belongs to one event loop."""

    async def claim(self, claims: Sequence[tuple[str, str]], lease: float) -> list[Claim]:
        """Claim each (key, token) for `lease` seconds and return the answers in order.

        Never raises because the store is away: the answers are `UNREACHABLE` then. The attempt is
        counted here, before the handler runs, and outlives the lease of an owner that vanished.
        The same token may ask again and gets the same attempt.
        """
        ...

    def settle(self, key: str, token: str, fate: Fate) -> None:
        """Tell what became of a claim, soon; only "done" counts from a token that lost it."""
        ...

    def renew(self, key: str, token: str, lease: float) -> None:
        """Let a claim hold for `lease` seconds from now, soon, if the token still has it."""
        ...

    async def close(self) -> None:
        """Write what is still to be written and let go of everything."""
        ...
