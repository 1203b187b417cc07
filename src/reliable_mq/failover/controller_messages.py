"""The requests of a broker to the controller, and what the answers say.

Source: Apache RocketMQ `BrokerOuterAPI`, `remoting.protocol.header.controller`.
"""

from typing import NamedTuple

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.failover.identity import Identity
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import Header
from reliable_mq.wire.java_int import I32, I64
from reliable_mq.wire.peer_texts import read_json_as

_REFUSALS = range(2000, 2015)
"""The codes with which a controller refuses a request. One that leads no more answers 2007."""


class Leadership(NamedTuple):
    """Who is the master of a name, by the controller.

    Attributes:
        master_id: its number; 0: there is no master.
        address: its address, "host:port".
        epoch: of its election.
        in_sync: the numbers of the replicas that the controller may elect.
        in_sync_epoch: of that set.
    """

    master_id: int
    address: str
    epoch: int
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0


class Replica(NamedTuple):
    """One broker of a name, as the controller knows it."""

    broker_id: int
    address: str
    is_alive: bool


class LiveState(NamedTuple):
    """What a heartbeat says of a broker: the controller elects the one that is the furthest."""

    epoch: int
    log_end: int
    confirmed: int


def ask_leader() -> Command:
    """Return the request for the controller that leads."""
    return request(RequestCode.CONTROLLER_GET_METADATA_INFO)


def leader_of(answer: Command) -> str:
    """Return the address of the leading controller; "": there is none."""
    return _Leader.decode(_accepted(answer).ext_fields).controller_leader_address or ""


def ask_next_id(cluster: str, name: str) -> Command:
    """Return the request for a free number."""
    fields = {"clusterName": cluster, "brokerName": name}
    return request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, fields)


def next_id_of(answer: Command) -> int:
    """Return the free number."""
    return _NextId.decode(_accepted(answer).ext_fields).next_broker_id


def apply_id(identity: Identity) -> Command:
    """Return the application for a number."""
    fields = {
        "clusterName": identity.cluster,
        "brokerName": identity.name,
        "appliedBrokerId": str(identity.broker_id),
        "registerCheckCode": identity.code,
    }
    return request(RequestCode.CONTROLLER_APPLY_BROKER_ID, fields)


def is_granted(answer: Command) -> bool:
    """Return whether the number is this broker's now; False: another one has it."""
    return answer.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID and bool(_accepted(answer))


def register(identity: Identity, address: str, now_ms: int) -> Command:
    """Return the request that registers a broker with its number and address."""
    fields = {
        "clusterName": identity.cluster,
        "brokerName": identity.name,
        "brokerId": str(identity.broker_id),
        "brokerAddress": address,
        "invokeTime": str(now_ms),
    }
    return request(RequestCode.CONTROLLER_REGISTER_BROKER, fields)


def ask_leadership(name: str) -> Command:
    """Return the request for the master of a name."""
    return request(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": name})


def leadership_of(answer: Command) -> Leadership:
    """Return who is the master, from the answer to `register`, `ask_leadership` or `elect`."""
    if answer.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
        _accepted(answer)
    head = _Master.decode(answer.ext_fields)
    body = read_json_as(answer.body, _InSync) if answer.body else _InSync()
    has_master = head.master_broker_id is not None and bool(head.master_address)
    return Leadership(
        (head.master_broker_id or 0) if has_master else 0,
        (head.master_address or "") if has_master else "",
        head.master_epoch or 0,
        frozenset(body.sync_state_set or ()),
        head.sync_state_set_epoch or body.sync_state_set_epoch,
    )


def elect(identity: Identity, now_ms: int) -> Command:
    """Return the request of a broker to become the master, if there is none."""
    fields = {
        "clusterName": identity.cluster,
        "brokerName": identity.name,
        "brokerId": str(identity.broker_id),
        "designateElect": "false",
        "invokeTime": str(now_ms),
    }
    return request(RequestCode.CONTROLLER_ELECT_MASTER, fields)


def is_elected(answer: Command) -> bool:
    """Return whether a master is there now; False: this broker may not become one."""
    failed = (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,)
    return answer.code not in failed


def alter_in_sync(
    identity: Identity, leadership: Leadership, wanted: frozenset[int], now_ms: int
) -> Command:
    """Return the request of a master to change the set of replicas in sync."""
    fields = {
        "brokerName": identity.name,
        "masterBrokerId": str(identity.broker_id),
        "masterEpoch": str(leadership.epoch),
        "invokeTime": str(now_ms),
    }
    body = fastjson.dumps(
        {"syncStateSet": sorted(wanted), "syncStateSetEpoch": leadership.in_sync_epoch}
    )
    return request(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)


def is_refused(answer: Command) -> bool:
    """Return whether the controller has refused a request; an error may come after it acted."""
    return answer.code in _REFUSALS


def in_sync_of(answer: Command) -> tuple[frozenset[int], int]:
    """Return the set of replicas in sync and its epoch, from the answer to `alter_in_sync`."""
    body = read_json_as(_accepted(answer).body, _InSync)
    return frozenset(body.sync_state_set or ()), body.sync_state_set_epoch


def ask_replicas(name: str) -> Command:
    """Return the request for all brokers of a name."""
    return request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=fastjson.dumps([name]))


def replicas_of(answer: Command, name: str) -> list[Replica]:
    """Return all brokers of a name; none if the controller does not know the name."""
    table = read_json_as(_accepted(answer).body, _Replicas).replicas_info_table or {}
    if (found := table.get(name)) is None:
        return []
    rows = (*(found.in_sync_replicas or ()), *(found.not_in_sync_replicas or ()))
    return [Replica(each.broker_id, each.broker_address or "", bool(each.alive)) for each in rows]


def heartbeat(
    identity: Identity, address: str, live: LiveState, timeout_ms: int, priority: int
) -> Command:
    """Return the heartbeat of a broker."""
    fields = {
        "clusterName": identity.cluster,
        "brokerAddr": address,
        "brokerName": identity.name,
        "brokerId": str(identity.broker_id),
        "epoch": str(live.epoch),
        "maxOffset": str(live.log_end),
        "confirmOffset": str(live.confirmed),
        "heartbeatTimeoutMills": str(timeout_ms),
        "electionPriority": str(priority),
    }
    return request(RequestCode.BROKER_HEARTBEAT, fields)


def _accepted(answer: Command) -> Command:
    """Return an answer.

    Raises:
        ValueError: when it refuses.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise ValueError(f"the controller answers {answer.code}: {answer.remark or 'no reason'}")
    return answer


@decodable
class _Leader(Header, frozen=True, kw_only=True, rename="camel"):
    controller_leader_address: str | None = None


@decodable
class _NextId(Header, frozen=True, kw_only=True, rename="camel"):
    next_broker_id: I64


@decodable
class _Master(Header, frozen=True, kw_only=True, rename="camel"):
    master_broker_id: I64 | None = None
    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None


@decodable
class _InSync(msgspec.Struct, frozen=True, rename="camel"):
    sync_state_set: list[I64] | None = None
    sync_state_set_epoch: I32 = 0


@decodable
class _Row(msgspec.Struct, frozen=True, rename="camel"):
    broker_id: I64
    broker_address: str | None = None
    alive: bool | None = None


@decodable
class _Rows(msgspec.Struct, frozen=True, rename="camel"):
    in_sync_replicas: list[_Row] | None = None
    not_in_sync_replicas: list[_Row] | None = None


@decodable
class _Replicas(msgspec.Struct, frozen=True, rename="camel"):
    replicas_info_table: dict[str, _Rows] | None = None
