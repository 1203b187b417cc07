"""What the configuration of a consumer group says about attempts and waits. Pure.

Source: Apache RocketMQ `SubscriptionGroupConfig`, `GroupRetryPolicy`, `CustomizedRetryPolicy`.
"""

from typing import Any

import msgspec


class GroupPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer group's configuration says; delays in milliseconds.

    `delays` are those of a list. `exponential` is (initial, longest, factor); then no list counts.
    """

    is_orderly: bool = False
    retries: int = 16
    delays: tuple[int, ...] = (
        *(1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000),
        *(420_000, 480_000, 540_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000),
    )
    exponential: tuple[int, int, float] | None = None

    def delay_ms(self, attempts: int) -> int:
        """Return how long a message waits that has failed so many times before."""
        if self.exponential is not None:
            initial, longest, factor = self.exponential
            return int(min(initial * factor ** min(attempts, 32), longest))
        # As in Apache's `CustomizedRetryPolicy`, which begins with the third delay.
        return self.delays[min(attempts + 2, len(self.delays) - 1)]


def policy_of(found: dict[str, Any]) -> GroupPolicy:
    """Return the policy in the configuration of a group. What is not there has its default."""
    ours = GroupPolicy()
    policy = found.get("groupRetryPolicy")
    policy = policy if isinstance(policy, dict) else {}
    exponential, delays = None, ours.delays
    try:
        if policy.get("type") == "EXPONENTIAL":
            given = policy.get("exponentialRetryPolicy") or {}
            exponential = (
                *(int(given.get("initial", 5_000)), int(given.get("max", 7_200_000))),
                float(given.get("multiplier", 2)),
            )
        elif (given := policy.get("customizedRetryPolicy")) and given.get("next"):
            delays = tuple(int(each) for each in given["next"])
        return GroupPolicy(
            is_orderly=bool(found.get("consumeMessageOrderly")),
            retries=int(found.get("retryMaxTimes", ours.retries)),
            delays=delays,
            exponential=exponential,
        )
    except (TypeError, ValueError, AttributeError):
        return ours
