"""What a consumer wants of one topic, as heartbeats and the answers to tools have it. Pure.

Source: Apache RocketMQ `SubscriptionData`.
"""

from collections.abc import Iterable

from reliable_mq.wire.java_hash import java_string_hash


def subscription_row(
    topic: str, expression: str, kind: str, tags: Iterable[str], version: int
) -> dict[str, object]:
    """Return the subscription of one topic.

    Args:
        topic: its name.
        expression: the filter.
        kind: of the filter, "TAG" or "SQL92".
        tags: those in the filter.
        version: higher for a newer subscription; in milliseconds.
    """
    names = sorted(tags)
    return {
        "classFilterMode": False,
        "codeSet": sorted(map(java_string_hash, names)),
        "expressionType": kind,
        "subString": expression,
        "subVersion": version,
        "tagsSet": names,
        "topic": topic,
    }
