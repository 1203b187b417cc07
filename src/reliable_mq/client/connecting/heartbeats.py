"""Heartbeats: they inform a broker of this client's groups, in full or in short form.

A full heartbeat has every subscription of every group, and a fingerprint of them. If the broker
answers that it knows this fingerprint, the next heartbeats are short: they omit the subscriptions.
A change of the groups, or a new connection, needs a full heartbeat again. A broker keeps one
fingerprint per group. So all members with different subscriptions keep sending full heartbeats.
Source: Apache RocketMQ `MQClientInstance.sendHeartbeatToAllBrokerV2`, `ClientManageProcessor`.
"""

from collections.abc import Collection, Iterable, Sequence
from zlib import crc32

import msgspec

from reliable_mq.client.connecting.membership import ConsumerData
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

NO_FINGERPRINT = 0
"""The fingerprint in a heartbeat of version 1, which has no short form."""

_JAVA_INT_MAX = 0x7FFFFFFF
_NOT_IN_FINGERPRINT = frozenset({"subVersion"})  # each member has its own value


class Heartbeats:
    """What each broker knows about one client.

    Invariant C5: a short heartbeat is sent only on a connection on which the broker has accepted a
    full heartbeat with the same fingerprint.

    Args:
        client_id: the client's name.
        in_short: whether to send short heartbeats (version 2) to brokers that support them.
    """

    def __init__(self, client_id: str, *, in_short: bool) -> None:
        self._client_id = client_id
        self._in_short = in_short
        self._sent: dict[str, tuple[Command, int]] = {}  # the last heartbeat, and its fingerprint
        self._understood: dict[str, int] = {}
        self._versions: dict[str, int] = {}

    def command(
        self, address: str, producer_groups: Iterable[str], consumers: Sequence[ConsumerData]
    ) -> Command:
        """Return the heartbeat that the broker at `address` needs now, in full or in short form."""
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
        """Record a broker's answer to a heartbeat.

        Only the answer to the last heartbeat counts: that one may have new groups.
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
        """Use a full heartbeat for this broker again: its connection has ended."""
        self._understood.pop(address, None)
        self._sent.pop(address, None)

    def forget_except(self, addresses: Collection[str]) -> None:
        """Forget brokers at all other addresses: no route has them any more."""
        for table in (self._sent, self._understood, self._versions):
            for address in table.keys() - set(addresses):
                del table[address]

    def version_of(self, address: str) -> int | None:
        """Return the version in a broker's answers; None before its first answer."""
        return self._versions.get(address)


def fingerprint_of(producers: Sequence[object], consumers: Sequence[ConsumerData]) -> int:
    """Return a number that is equal for members with equal subscriptions; never 0."""
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
