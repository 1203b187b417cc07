"""The contract of a lease store: what it must do so that the promises hold, as tests for anyone.

Make a subclass in a test module and say how the store is opened; pytest collects the rest:

    class TestMyLeases(LeaseStoreContract):
        def open_store(self) -> LeaseStore:
            return MyLeases("…")

Our own stores run the same suite. `database_contract` has the one for databases.
"""

import asyncio
from collections.abc import Awaitable, Callable

from reliable_mq.idempotency.claim import Claim, LeaseAnswer
from reliable_mq.idempotency.lease_store import LeaseEnd, LeaseStore

LONG, SHORT = 30.0, 0.02
KEY = "rmq:contract:" + "A" * 32

Scenario = Callable[[LeaseStore], Awaitable[None]]


class LeaseStoreContract:
    """What a `LeaseStore` promises. Each test finds an empty store."""

    def open_store(self) -> LeaseStore:
        """Return the store, opened in the running event loop; a second one sees the same leases."""
        raise NotImplementedError

    def forget(self) -> None:
        """Empty the store."""
        raise NotImplementedError

    def play(self, scenario: Scenario) -> None:
        """Run a scenario on an empty store, in a loop of its own."""

        async def main() -> None:
            store = self.open_store()
            try:
                await scenario(store)
            finally:
                await store.close()

        self.forget()
        asyncio.run(main())

    def test_one_of_two_owners_gets_the_lease_and_the_other_is_told_how_long(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            assert await claim(store, "one") == Claim(LeaseAnswer.FIRST, 1)
            second = await claim(store, "two")
            assert second.lease is LeaseAnswer.HELD
            assert LONG - 1 < second.wait <= LONG

        self.play(scenario)

    def test_two_stores_see_the_same_leases(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            other = self.open_store()
            assert (await claim(store, "one")).lease is LeaseAnswer.FIRST
            assert (await claim(other, "two")).lease is LeaseAnswer.HELD
            await other.close()

        self.play(scenario)

    def test_many_claims_are_answered_in_their_order(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one", "b")
            keys = ("a", "b", "c")
            answers = await store.claim([(key, f"two-{key}") for key in keys], LONG)
            assert [each.lease for each in answers] == [
                LeaseAnswer.FIRST,
                LeaseAnswer.HELD,
                LeaseAnswer.FIRST,
            ]

        self.play(scenario)

    def test_each_claim_holds_for_its_own_time(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await asyncio.gather(
                claim(store, "one", "slow", lease=LONG), claim(store, "one", "quick", lease=5.0)
            )
            waits = [(await claim(store, "two", key)).wait for key in ("slow", "quick")]
            assert LONG - 1 < waits[0] <= LONG
            assert 4 < waits[1] <= 5

        self.play(scenario)

    def test_the_same_token_may_ask_again_and_that_is_no_new_attempt(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            assert (
                await claim(store, "one")
                == await claim(store, "one")
                == Claim(LeaseAnswer.FIRST, 1)
            )

        self.play(scenario)

    def test_an_attempt_after_one_that_vanished_is_counted_and_told_of_it(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one", lease=SHORT)
            assert await claim_when_free(store, "two") == Claim(LeaseAnswer.AGAIN, 2, in_doubt=True)

        self.play(scenario)

    def test_a_doubt_stays_when_the_answer_was_lost_or_the_attempt_did_not_count(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one", lease=SHORT)
            doubtful = await claim_when_free(store, "two")
            assert await claim(store, "two") == doubtful
            store.settle(KEY, "two", "back")
            assert await claim(store, "three") == doubtful

        self.play(scenario)

    def test_what_is_done_stays_done(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one")
            store.settle(KEY, "one", "done")
            for token in ("one", "two"):
                assert (await claim(store, token)).lease is LeaseAnswer.DONE

        self.play(scenario)

    def test_done_counts_from_an_owner_that_lost_its_lease_too(self) -> None:
        """Its row says CONSUMED: that is decided, whoever holds the lease."""

        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one", lease=SHORT)
            await claim_when_free(store, "two")
            store.settle(KEY, "one", "done")
            assert (await claim(store, "three")).lease is LeaseAnswer.DONE

        self.play(scenario)

    def test_a_failure_frees_the_key_because_its_row_has_the_number(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one")
            store.settle(KEY, "one", "fail")
            assert await claim(store, "two") == Claim(LeaseAnswer.FIRST, 1)

        self.play(scenario)

    def test_an_attempt_given_back_leaves_the_earlier_ones_counted(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one")
            store.settle(KEY, "one", "back")
            assert await claim(store, "two", lease=SHORT) == Claim(LeaseAnswer.FIRST, 1)
            await claim_when_free(store, "three")
            store.settle(KEY, "three", "back")
            assert (await claim(store, "four")).attempt == 2

        self.play(scenario)

    def test_a_token_that_lost_its_lease_changes_nothing(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            lease_ends: tuple[LeaseEnd, ...] = ("fail", "back")
            await claim(store, "one")
            for lease_end in lease_ends:
                store.settle(KEY, "stale", lease_end)
            store.renew(KEY, "stale", SHORT)
            second = await claim(store, "two")
            assert (second.lease, second.wait > LONG - 1) == (LeaseAnswer.HELD, True)

        self.play(scenario)

    def test_a_renewed_lease_holds_longer(self) -> None:
        async def scenario(store: LeaseStore) -> None:
            await claim(store, "one", lease=5.0)
            store.renew(KEY, "one", LONG)
            second = await claim(store, "two")
            assert (second.lease, second.wait > LONG - 1) == (LeaseAnswer.HELD, True)

        self.play(scenario)


async def claim(store: LeaseStore, token: str, key: str = KEY, *, lease: float = LONG) -> Claim:
    """Claim one key."""
    return (await store.claim([(key, token)], lease))[0]


async def claim_when_free(store: LeaseStore, token: str) -> Claim:
    """Claim the key as soon as its lease has passed."""
    while (found := await claim(store, token)).lease is LeaseAnswer.HELD:
        await asyncio.sleep(found.wait)
    return found
