"""Find records that do not match the stub of their message, and the groups that consumed one. Pure.

Receives traces and their rows. A record does not match if its digest, or the checksum of its
content, differs from the stub's. A value that one of the ledgers lacks is not compared.
"""

from dataclasses import dataclass

import numpy as np

from reliable_mq.reconcile.judgement.events import NO_TIME
from reliable_mq.reconcile.judgement.spread_rows import SpreadRows
from reliable_mq.reconcile.judgement.traces import NO_NUMBER, NameColumn, Traces, values_at

_DIGESTS = ("digest_1", "digest_2")


@dataclass(frozen=True)
class ForgedPairs:
    """`others`: the events of records that do not match their stub.

    For each message, `has_right` and `has_other` say whether it has a record that matches, and
    whether it has one that does not.
    """

    others: np.ndarray
    has_right: np.ndarray
    has_other: np.ndarray


def pairs_of(traces: Traces, rows: SpreadRows) -> ForgedPairs:
    """Compare first deliveries and delayed records with the stubs."""
    stored = np.concatenate((rows.firsts, rows.delays))
    message, count = traces.message[stored], len(rows.start)
    stub = rows.stub[message]
    is_other = np.zeros(len(stored), bool)
    for name in ("crc", *_DIGESTS):
        nothing = int(NO_NUMBER if name == "crc" else NO_TIME)
        said, found = values_at(traces[name], stub, nothing), traces[name][stored]
        is_other |= (said != found) & (said != nothing) & (found != nothing)
    right, other = (
        np.bincount(message[chosen], minlength=count) > 0 for chosen in (~is_other, is_other)
    )
    return ForgedPairs(stored[is_other], right, other)


def consumed_others(
    traces: Traces, rows: SpreadRows, stores: NameColumn, pairs: ForgedPairs, logs: np.ndarray
) -> np.ndarray:
    """Return the rows of forged pairs whose group consumed the record that does not match.

    A consume log has the topic and the position of its delivery. The positions of retries are in
    other queues, so a position that a retry has, too, proves nothing.

    Args:
        traces: the traces of the messages.
        rows: the rows of the traces.
        stores: the store with the log of each event's broker.
        pairs: the result of `pairs_of`.
        logs: the consume log of each row, -1 if it does not say CONSUMED.
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
