"""Checks of masters and their slaves: who follows whom, and what each lacks. Values only.

Source of the answers: Apache RocketMQ `HARuntimeInfo`.
"""

import ipaddress
from typing import Any

from reliable_mq.client.administering.cluster_facts import BrokerFacts, ClusterFacts
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings

_SYNC_MASTER, _SLAVE = "SYNC_MASTER", "SLAVE"
_STALE_TABLES_SECONDS = 60
_OWN_NAME_SERVER = "ownNameServer"  # only brokers of ours say it
_STANDS_IN = "enableSlaveActingMaster"
_SEGMENT_SIZE = "mappedFileSizeCommitLog"


def replicas(context: CheckContext, report: CheckFindings) -> None:
    """Every slave follows its master and has its log and its tables; the log is for slaves only."""
    cluster = context.cluster
    if cluster is None:
        report.skip("the brokers cannot be asked for their slaves")
        return
    _rivals(cluster, report)
    slaves: dict[str, list[BrokerFacts]] = {}
    for slave in cluster.slaves:
        slaves.setdefault(slave.name, []).append(slave)
    said = []
    for master in cluster.brokers:
        own = slaves.pop(master.name, [])
        if master.failure:  # the check of brokers says why
            continue
        _master(master, own, report)
        for slave in own:
            _slave(slave, master, report)
        if own:
            said.append(_pair(master, own))
    for name, left in slaves.items():
        acting = [each for each in left if each.runtime.get("standsIn") == "true"]
        what = f"; {_addresses(acting)} stands in for it" if acting else ""
        report.error(
            f"broker {name} has no master: clients can read from {_addresses(left)}, and nobody "
            f"can send to it{what}",
            "start the master; or make a slave the master (reliable-mq broker promote --store DIR)",
        )
    if not report.findings:
        report.ok("; ".join(said) or "no broker has a slave")


def _addresses(brokers: list[BrokerFacts]) -> str:
    return ", ".join(f"slave {each.broker_id} at {each.address}" for each in brokers)


def _pair(master: BrokerFacts, slaves: list[BrokerFacts]) -> str:
    """Return who follows whom, and what the slaves lack."""
    rows = _connections(master)
    lacks = ", ".join(f"{_number(row, 'diff')} bytes" for row in rows)
    role = master.config.get("brokerRole", "a master")
    who = f"{_addresses(slaves)} of broker {master.name}"
    return f"{who} at {master.address} ({role}): {len(rows)} connected, lacking {lacks}"


def _rivals(cluster: ClusterFacts, report: CheckFindings) -> None:
    for name, masters in sorted(cluster.rivals.items()):
        report.error(
            f"{len(masters)} masters are called {name}: {', '.join(sorted(masters))}. Each has "
            "messages that the other one lacks",
            "stop the one that shall not be the master, and find out what it has; give each "
            "broker a brokerName of its own",
        )


def _master(master: BrokerFacts, slaves: list[BrokerFacts], report: CheckFindings) -> None:
    who, rows = f"broker {master.name}", _connections(master)
    keep_up = sum(row.get("inSync") is True for row in rows)
    is_sync = master.config.get("brokerRole") == _SYNC_MASTER
    needed = _needed(master) if is_sync else 0
    if is_sync and not needed:
        report.warn(
            f"{who} is a SYNC_MASTER that waits for no slave (inSyncReplicas=1): the loss of its "
            "machine loses messages that it has acknowledged",
            "inSyncReplicas=2",
        )
    if keep_up < needed:
        report.error(
            f"{who} is a SYNC_MASTER, needs {needed} slave(s) that keep up, and has {keep_up}: it "
            "answers sends with SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT, and the loss of its "
            "machine loses them",
            "start its slaves, and look at their logs",
        )
    elif not rows and not slaves and _is_for_slaves(master):
        report.warn(
            f"{who} is there for slaves (haListenPort={master.config['haListenPort']}), and none "
            "is connected: the loss of its machine loses messages",
            "start its slave; or leave out brokerRole, if it shall have none",
        )
    elif len(rows) < len(slaves):
        report.error(
            f"{len(slaves) - len(rows)} of {len(slaves)} slave(s) of {who} are not connected to it",
            "look at the log of the slave: master_lost says why; the master's has slave_cut",
        )
    if len(rows) > len(slaves):
        report.warn(
            f"{len(rows)} slaves are connected to {who}, and the name servers know {len(slaves)}: "
            "two have the same brokerId, or one is at other name servers",
            "give each slave a brokerId of its own, and the name servers of its master",
        )
    for row in rows:
        if row.get("inSync") is False:
            tell = report.error if needed else report.warn
            tell(
                f"the slave at {row.get('addr')} does not keep up with {who}: it lacks "
                f"{_number(row, 'diff')} bytes",
                "look at the disk of the slave, and at the network between both",
            )
    if slaves and master.config.get(_OWN_NAME_SERVER) == "true":
        report.warn(
            f"the name server of {who} runs in the same process: when it is away, clients cannot "
            "find its slaves",
            "run reliable-mq namesrv elsewhere, and start all brokers with --namesrv",
        )
    if master.config.get("haOpenToEverybody") == "true":
        port = master.config.get("haListenPort", "")
        report.error(
            f"{who} GIVES EVERY MESSAGE TO EVERYBODY: whoever reaches its port {port} gets the "
            "whole log, as a slave does",
            "haAllowedAddresses=the addresses of the slaves; or listen at 127.0.0.1",
        )


def _slave(slave: BrokerFacts, master: BrokerFacts, report: CheckFindings) -> None:
    who = f"slave {slave.broker_id} of broker {slave.name} at {slave.address}"
    if slave.failure:
        report.error(f"{who}: {slave.failure}", "look at its log")
        return
    role = slave.config.get("brokerRole", _SLAVE)
    if role != _SLAVE:
        report.error(
            f"{who} has brokerRole={role}: it follows nobody", "brokerRole=SLAVE, or brokerId=0"
        )
        return
    sizes = [each.config.get(_SEGMENT_SIZE, "") for each in (slave, master)]
    if all(sizes) and sizes[0] != sizes[1]:
        report.error(
            f"{who} has {_SEGMENT_SIZE}={sizes[0]}, and its master {sizes[1]}: it cannot copy the "
            "log",
            f"give it an empty store, and {_SEGMENT_SIZE}={sizes[1]}",
        )
    if slave.config.get(_STANDS_IN) == "true" and master.config.get(_STANDS_IN) != "true":
        report.warn(
            f"{who} may stand in for its master ({_STANDS_IN}=true), and the master does not ask "
            "it what it has delivered: those messages come twice",
            f"{_STANDS_IN}=true at the master, too",
        )
    _followed(who, slave, master, report)
    _tables(who, slave, report)


def _followed(who: str, slave: BrokerFacts, master: BrokerFacts, report: CheckFindings) -> None:
    client = slave.replication.get("haClientRuntimeInfo")
    if not isinstance(client, dict):  # an older broker
        return
    followed = str(client.get("masterAddr") or "")
    wanted = f"{_ha_host(master)}:{master.config.get('haListenPort', '')}"
    if not followed:
        report.error(
            f"{who} follows no master",
            "its log says why: master_lost; haMasterAddress and the name servers must be right",
        )
    elif _is_elsewhere(followed, wanted):
        report.error(
            f"{who} follows {followed}, and the master of this name takes slaves at {wanted}: two "
            "masters may have one name",
            "stop the master that shall not be one; or correct the slave's haMasterAddress",
        )


def _tables(who: str, slave: BrokerFacts, report: CheckFindings) -> None:
    failure = slave.runtime.get("masterTablesFailure", "")
    age = slave.runtime.get("masterTablesAgeSeconds", "")
    if failure or (age.isdecimal() and int(age) > _STALE_TABLES_SECONDS):
        report.error(
            f"{who} has not taken over the topics, groups and offsets of its master for {age} s"
            + (f": {failure}" if failure else ""),
            "with access control: innerClientAuthenticationCredentials of a user who may Get the "
            "cluster"
            if failure
            else "wait while it copies the log, they come behind it; else look at its log",
        )


def _ha_host(master: BrokerFacts) -> str:
    """Return the host at which a master takes slaves: Apache's may have another one for them."""
    return master.config.get("brokerIP2") or master.config.get("brokerIP1", "")


def _is_elsewhere(address: str, wanted: str) -> bool:
    """Return whether two addresses differ for sure: of a name only the port is compared."""
    (host, _, port), (wanted_host, _, wanted_port) = (
        each.replace("[", "").replace("]", "").rpartition(":") for each in (address, wanted)
    )
    if not (port.isdecimal() and wanted_port.isdecimal() and int(wanted_port) > 0):
        return False
    are_ips = _is_ip(host) and _is_ip(wanted_host)
    return port != wanted_port or (are_ips and host != wanted_host)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_for_slaves(master: BrokerFacts) -> bool:
    """Return whether a broker was started for slaves. Apache's has a port for them in any case."""
    port = master.config.get("haListenPort", "")
    return _OWN_NAME_SERVER in master.config and port.isdecimal() and int(port) > 0


def _needed(master: BrokerFacts) -> int:
    """Return how many slaves must have a message; Apache's 4.x always waits for one."""
    text = master.config.get("inSyncReplicas", "2")
    return int(text) - 1 if text.isdecimal() else 0


def _connections(broker: BrokerFacts) -> list[dict[str, Any]]:
    rows = broker.replication.get("haConnectionInfo")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _number(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) else 0
