"""The kinds of requests: each is what clients ask and what the broker must do with it.

A new kind is one small class and one line in each of the two tables.
"""

from collections.abc import Mapping
from typing import Protocol

from tests.simulation.asked import Kind
from tests.simulation.client import Asking
from tests.simulation.kinds import groups, offsets, pops, pulls, recalls, sends, transactions

from reliable_mq.wire.codes import RequestCode


class WholeKind(Asking, Kind, Protocol):
    """Both sides of a kind."""


# What askers ask, and how often.
ASKED: Mapping[str, tuple[int, WholeKind]] = {
    "send": (30, sends.Send()),
    "delayed": (6, sends.SendDelayed()),
    "timed": (5, sends.SendTimed()),
    "recall": (3, recalls.Recall()),
    "half": (4, transactions.SendHalf()),
    "end": (4, transactions.EndTransaction()),
    "batch": (5, sends.SendBatch()),
    "wrong": (2, sends.SendWrongly()),
    "send back": (3, sends.SendBack()),
    "pull": (30, pulls.Pull()),
    "commit": (5, offsets.Commit()),
    "reset": (1, offsets.Reset()),
    "committed": (4, offsets.Committed()),
    "ends": (4, offsets.QueueEnds()),
    "search": (2, offsets.SearchByTime()),
    "view": (3, offsets.ViewById()),
    "heartbeat": (3, groups.Heartbeat()),
    "lock": (5, groups.Lock()),
}

_send, _pull, _lock, _anything = sends.Send(), pulls.Pull(), groups.Lock(), groups.Anything()
# What is right, by request code.
JUDGES: Mapping[int, Kind] = {
    RequestCode.SEND_MESSAGE: _send,
    RequestCode.SEND_MESSAGE_V2: _send,
    RequestCode.SEND_BATCH_MESSAGE: _send,
    RequestCode.RECALL_MESSAGE: recalls.Recall(),
    RequestCode.END_TRANSACTION: transactions.EndTransaction(),
    RequestCode.CONSUMER_SEND_MSG_BACK: sends.SendBack(),
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.POP_MESSAGE: pops.Pop(),
    RequestCode.ACK_MESSAGE: pops.Ack(),
    RequestCode.BATCH_ACK_MESSAGE: pops.BatchAck(),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pops.Extend(),
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.Commit(),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.Reset(),
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.Committed(),
    RequestCode.GET_MAX_OFFSET: offsets.QueueEnds(),
    RequestCode.GET_MIN_OFFSET: offsets.QueueEnds(),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.SearchByTime(),
    RequestCode.VIEW_MESSAGE_BY_ID: offsets.ViewById(),
    RequestCode.HEART_BEAT: groups.Heartbeat(),
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _anything,
    RequestCode.UNREGISTER_CLIENT: _anything,
}
