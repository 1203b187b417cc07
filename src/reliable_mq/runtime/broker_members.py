"""What name servers know of the brokers of one name, and of topics.

Receives the links of a broker. Asks each name server, and also the brokers, one request at a time.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.decodable import decodable
from reliable_mq.errors import FrameError, ProtocolError, Unavailable
from reliable_mq.replication.standing_in import Members
from reliable_mq.runtime.links import Links
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.peer_texts import read_json_as

TIMEOUT = 2.0
ASKING_FAULTS = (
    Unavailable,
    FrameError,
    ProtocolError,
    ValueError,
    KeyError,
    msgspec.MsgspecError,
)
"""What asking another server may raise: it is away, or its answer cannot be used."""


async def asked(
    links: Links,
    address: str,
    code: RequestCode,
    fields: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> Command:
    """Ask a server; return its answer.

    Raises: ASKING_FAULTS, also when it refuses.
    """
    answer = await links.call(address, request(code, dict(fields or {})), timeout)
    if answer.code != ResponseCode.SUCCESS:
        raise ValueError(f"request {int(code)} is refused: {answer.remark or answer.code}")
    return answer


async def members_at(links: Links, name_server: str, config: BrokerConfig) -> Members | None:
    """Return the brokers with this broker's name; None: the name server does not answer."""
    fields = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
    try:
        answer = await asked(links, name_server, RequestCode.GET_BROKER_MEMBER_GROUP, fields)
        return read_json_as(answer.body, _Answer).broker_member_group.broker_addrs
    except ASKING_FAULTS:
        return None


async def all_members(links: Links, config: BrokerConfig) -> list[Members | None]:
    """Return what each name server knows of this broker's name."""
    name_servers = config.name_servers.split(";")
    return await asyncio.gather(*(members_at(links, each, config) for each in name_servers))


@decodable
class _Group(msgspec.Struct, frozen=True, rename="camel"):
    broker_addrs: dict[int, str] = {}


@decodable
class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    broker_member_group: _Group


@decodable
class RouteBroker(msgspec.Struct, frozen=True, rename="camel"):
    """A broker in the route of a topic."""

    broker_name: str
    cluster: str = ""
    broker_addrs: dict[int, str] = {}


@decodable
class RouteQueues(msgspec.Struct, frozen=True, rename="camel"):
    """The queues of a topic at one broker."""

    broker_name: str
    perm: int
    read_queue_nums: int = 0
    write_queue_nums: int = 0


@decodable
class TopicRoute(msgspec.Struct, frozen=True, rename="camel"):
    """Where a topic is, as a name server says."""

    broker_datas: list[RouteBroker] = []
    queue_datas: list[RouteQueues] = []
