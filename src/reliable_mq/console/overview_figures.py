"""What the overview shows beside the first signs: machines, the last day, latency by station."""

import os
import platform
from typing import NamedTuple

from reliable_mq.client.administering.cluster_facts import BrokerFacts
from reliable_mq.console.signs import Sign, State
from reliable_mq.console.signs_machines import of_clocks, of_disks, of_open_brokers, of_workers
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.measuring.sql_latency import Leg, LegTimes
from reliable_mq.measuring.sql_machines import Machines, SeenProcess
from reliable_mq.measuring.sql_throughput import Happening


class LegRow(NamedTuple):
    """How long messages took between two stations. `database` "": there is one only."""

    database: str
    leg: str
    times: LegTimes


class LatencyPanel(NamedTuple):
    """The latency by station. `age`: of the oldest figure. `faults`: why some are not known."""

    rows: list[LegRow]
    age: float
    faults: list[str]


def machine_signs(sources: ConsoleSources, lists: set[str]) -> list[Sign]:
    """Return the signs of brokers, clocks and workers. What was never read is one, too."""
    machines: dict[str, Machines] = {}
    ages: list[float] = []
    fault = ""
    for name, kept in sources.kept.items():
        reading = kept.machines.look()
        if reading.value is not None:
            machines[name] = reading.value
            ages.append(reading.age)
        fault = fault or reading.fault
    brokers = sources.brokers.look()
    known: tuple[BrokerFacts, ...] = ()
    if brokers.value is not None:
        known = (*brokers.value.brokers, *brokers.value.slaves)
    found = of_open_brokers(known, brokers.age, lists)
    found += of_disks(known, brokers.age, lists)
    age = max(ages, default=None)
    found += of_clocks(machines, known, age)
    if machines:
        seen = {each.owner: each for some in machines.values() for each in some.processes}
        others = [each for each in seen.values() if not is_this(each)]
        found.append(of_workers(others, _alone(sources), age, lists))
    else:
        found.append(_unread("Clocks and workers", fault))
    if brokers.value is None and not sources.why_no_cluster:
        found.append(_unread("Disk of brokers", brokers.fault))
    return found


def _unread(name: str, fault: str) -> Sign:
    """Return the sign of what is not known yet: else the page would say that nothing is wrong."""
    return Sign(name, State.UNKNOWN, "not known", fault or "It is being read.")


def is_this(process: SeenProcess) -> bool:
    """Whether it is this console: its clock is measured, so it reports, too."""
    return process.pid == os.getpid() and process.host == platform.node()[:255]


def _alone(sources: ConsoleSources) -> list[str]:
    """Return the groups with a handler in the application that have no member."""
    state = sources.cluster.look()
    if state.value is None or state.value.failures:
        return []
    members = {each.group: each.members for each in state.value.groups}
    own = sources.mq.consumer_groups
    whole = {group: sources.whole_name(group) for group in own}
    return [group for group in own if not (members.get(whole[group]) or members.get(group))]


def day_of(sources: ConsoleSources, name: str) -> dict[Happening, list[int]]:
    """Return the counts of each hour of the last day in a database; empty: they are not known."""
    return sources.kept[name].day.look().value or {}


def latency_panel(sources: ConsoleSources) -> LatencyPanel:
    """Return how long messages took from station to station."""
    rows: list[LegRow] = []
    faults: list[str] = []
    age = 0.0
    for name, kept in sources.kept.items():
        shown = name if len(sources.kept) > 1 else ""
        reading, at_brokers = kept.latency.look(), kept.at_brokers.look()
        legs = dict(reading.value.legs) if reading.value is not None else {}
        legs |= at_brokers.value or {}
        rows += [LegRow(shown, leg.value, legs[leg]) for leg in Leg if leg in legs]
        age = max(age, reading.age if reading.value is not None else 0.0)
        if reading.fault:
            faults.append(f"Database {name}: {reading.fault}")
    return LatencyPanel(rows, age, faults)
