"""Heartbeats: which groups this client belongs to, said in full or, when nothing is new, in short.

A full heartbeat names every subscription of every group. One of the second kind bears a fingerprint
of them; a broker that answers that it knows just these is told without them from then on, until
something changes or the connection is another. A broker keeps one fingerprint for each group, so
in a group with members that are not alike everybody goes on in full.
Source: Apache RocketMQ `MQClientInstance.sendHeartbeatToAllBrokerV2`, `ClientManageProcessor`.
"""

from collections.abc import Collection, Iterable, Sequence
from zlib import crc32

import msgspec

from reliable_mq.client.connecting.membership import ConsumerData
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

NO_FINGERPRINT = 0
"""Marks a heartbeat of the first kind."""

_JAVA_INT_MAX = 0x7FFFFFFF
_NOT_IN_FINGERPRINT = frozenset({"subVersion"})  # each member has its own


class Heartbeats:
    """What each broker has heard and understood of one client.

    Invariant: a broker is told in short only on the connection on which it answered a full
    heartbeat with the same fingerprint.

    Args:
        client_id: the client's name.
        in_short: whether the second kind is used where a broker understands it.
    """

    def __init__(self, client_id: str, *, in_short: bool) -> None:
        self._client_id = client_id
        self._in_short = in_short
        self._sent: dict[str, tuple[Command, int]] = {}  # the last one, and its fingerprint
        self._understood: dict[str, int] = {}
        self._versions: dict[str, int] = {}

    def command(
        self, address: str, producer_groups: Iterable[str], consumers: Sequence[ConsumerData]
    ) -> Command:
        """Return the heartbeat that the broker at `address` needs now."""
        producers = [{"groupName": name} for name in producer_groups]
        fingerprint = fingerprint_of(producers, consumers) if self._in_short else NO_FINGERPRINT
        short = self._in_short and self._understood.get(address) == fingerprint
        body = {
            "clientID": self._client_id,
            "consumerDataSet": [_without_subscriptions(each) for each in consumers]
            if short
            else consumers,
            "heartbeatFingerprint": fingerprint,
            "producerDataSet": producers,
            "withoutSub": short,
        }
        command = request(RequestCode.HEART_BEAT, None, msgspec.json.encode(body))
        self._sent[address] = command, fingerprint
        return command

    def answered(self, address: str, reply: Command) -> None:
        """Take in what a broker answered to a heartbeat.

        The answer to one before the last says nothing of the last, in which groups may be new.
        """
        self._versions[address] = reply.version
        knows = (
            reply.code == ResponseCode.SUCCESS
            and reply.ext_fields.get("IS_SUPPORT_HEART_BEAT_V2") == "true"
            and reply.ext_fields.get("IS_SUB_CHANGE") == "false"
        )
        last, fingerprint = self._sent.get(address, (None, NO_FINGERPRINT))
        if knows and last is not None and last.opaque == reply.opaque:
            self._understood[address] = fingerprint
        else:
            self._understood.pop(address, None)

    def forget(self, address: str) -> None:
        """Tell the broker everything again: its connection has ended."""
        self._understood.pop(address, None)
        self._sent.pop(address, None)

    def keep(self, addresses: Collection[str]) -> None:
        """Forget brokers at all other addresses: no route names them any more."""
        for table in (self._sent, self._understood, self._versions):
            for address in table.keys() - set(addresses):
                del table[address]

    def version_of(self, address: str) -> int | None:
        """Return the version that a broker answered with, None before its first answer."""
        return self._versions.get(address)


def fingerprint_of(producers: Sequence[object], consumers: Sequence[ConsumerData]) -> int:
    """Return a number that is the same for members that are alike; never 0."""
    plain = [
        {
            **each,
            "subscriptionDataSet": [
                {name: value for name, value in item.items() if name not in _NOT_IN_FINGERPRINT}
                for item in each["subscriptionDataSet"]
            ],
        }
        for each in consumers
    ]
    return (crc32(msgspec.json.encode([producers, plain])) & _JAVA_INT_MAX) or 1


def _without_subscriptions(data: ConsumerData) -> ConsumerData:
    return {**data, "subscriptionDataSet": []}
