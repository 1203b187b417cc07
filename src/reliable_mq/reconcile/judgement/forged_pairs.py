"""Records that are not what the stub of their message says, and what became of them. Pure.

Receives traces and their rows; hands on which records are others, and which group consumed such a
one. A record is another one when its digest, or the checksum of its content, is not the stub's.
What a ledger does not tell is compared with nothing.
"""

from dataclasses import dataclass

import numpy as np

from reliable_mq.reconcile.judgement.events import NO_TIME
from reliable_mq.reconcile.judgement.spread_rows import SpreadRows
from reliable_mq.reconcile.judgement.traces import NO_NUMBER, NameColumn, Traces, at

_DIGESTS = ("digest_1", "digest_2")


@dataclass(frozen=True)
class ForgedPairs:
    """`others` are events. Of each message: whether it has a right record, and another one."""

    others: np.ndarray
    has_right: np.ndarray
    has_other: np.ndarray


def pairs_of(traces: Traces, rows: SpreadRows) -> ForgedPairs:
    """Hold first deliveries, and delayed ones, against the stubs."""
    stored = np.concatenate((rows.firsts, rows.delays))
    message, count = traces.message[stored], len(rows.start)
    stub = rows.stub[message]
    is_other = np.zeros(len(stored), bool)
    for name in ("crc", *_DIGESTS):
        nothing = int(NO_NUMBER if name == "crc" else NO_TIME)
        said, found = at(traces[name], stub, nothing), traces[name][stored]
        is_other |= (said != found) & (said != nothing) & (found != nothing)
    right, other = (
        np.bincount(message[chosen], minlength=count) > 0 for chosen in (~is_other, is_other)
    )
    return ForgedPairs(stored[is_other], right, other)


def consumed_others(
    traces: Traces, rows: SpreadRows, stores: NameColumn, pairs: ForgedPairs, logs: np.ndarray
) -> np.ndarray:
    """Return the rows whose group consumed, of a pair, the record that is not the stub's.

    A consume log names topic and place of the delivery that it is of. A retry has a place in a
    queue of its own, so a place that a retry has, too, proves nothing.

    Args:
        traces: of the messages.
        rows: of the traces.
        stores: the store in which each event's broker has its log.
        pairs: see `pairs_of`.
        logs: the consume log of each row, -1 where it does not say CONSUMED.
    """
    is_pair = (pairs.has_right & pairs.has_other)[rows.message]
    chosen = np.flatnonzero((logs >= 0) & is_pair)
    if len(chosen) == 0:
        return chosen
    topics = traces.names["topic"].codes
    parts = (traces.message, stores.codes, topics, traces["queue_id"], traces["queue_offset"])

    def places(events: np.ndarray) -> list[tuple[int, ...]]:
        return list(zip(*(part[events].tolist() for part in parts), strict=True))

    wanted = set(places(pairs.others)) - set(places(rows.copies))
    found: np.ndarray = chosen[[place in wanted for place in places(logs[chosen])]]
    return found
