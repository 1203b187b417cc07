"""Who reads which queue: every member of a group computes it alone and gets the same answer.

Source: Apache RocketMQ `AllocateMessageQueueAveragely`.
"""

from collections.abc import Iterable

from reliable_mq.message import MessageQueue


def allocate_averagely(
    client_id: str, queues: Iterable[MessageQueue], client_ids: Iterable[str]
) -> list[MessageQueue]:
    """Return the queues that `client_id` reads.

    Queues are sorted by topic, broker and queue id, clients by id. Each client gets a run of
    neighbouring queues; when they do not divide evenly, the first clients get one more. A client
    that is not in the list gets none.
    """
    members = sorted(set(client_ids))
    ordered = sorted(queues)
    if client_id not in members:
        return []
    share, extra = divmod(len(ordered), len(members))
    index = members.index(client_id)
    start = index * share + min(index, extra)
    return ordered[start : start + share + (index < extra)]
