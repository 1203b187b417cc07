"""The rows of a route: the brokers of one name, and the queues of a topic on them.

Source: Apache RocketMQ `BrokerData`, `QueueData`, `RouteInfoManager.pickupTopicRouteData`.
"""

import msgspec

from reliable_mq.name_server.registration import RegisteredTopic
from reliable_mq.wire.java_int import I32

MASTER = 0
WRITE = 2
READ = 4
_OF_MEMBERS = "rmq_sys_SYNC_BROKER_MEMBER_"


class BrokerData(msgspec.Struct, kw_only=True, rename="camel"):
    """The brokers of one name: addresses by broker id. Id 0 is the master."""

    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    broker_name: str
    cluster: str
    enable_acting_master: bool = False


class QueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """The queues of one topic on the brokers of one name."""

    broker_name: str
    perm: I32 = 0
    read_queue_nums: I32 = 0
    topic_sys_flag: I32 = 0
    write_queue_nums: I32 = 0


def queue_data_of(broker_name: str, topic: RegisteredTopic) -> QueueData:
    """Return the row of a topic that a broker has registered."""
    return QueueData(
        broker_name=broker_name,
        perm=topic.perm,
        read_queue_nums=topic.read_queue_nums,
        topic_sys_flag=topic.topic_sys_flag,
        write_queue_nums=topic.write_queue_nums,
    )


def shown_brokers(data: BrokerData, queues: QueueData, topic: str) -> BrokerData:
    """Return the brokers of a name as a route shows them with `supportActingMaster`.

    The slave with the smallest id stands for a master that is away, if the brokers want that and
    nobody may write to the topic.
    """
    addresses = data.broker_addrs
    is_wanted = data.enable_acting_master and not topic.startswith(_OF_MEMBERS)
    if MASTER in addresses or not is_wanted or queues.perm & WRITE:
        return data
    least = min(addresses)
    others = {number: address for number, address in addresses.items() if number != least}
    return msgspec.structs.replace(data, broker_addrs={MASTER: addresses[least], **others})
