"""What one seed decides before the first event: how big, how fast and how broken the world is.

Each seed switches a random part of the faults and of the kinds of requests off (swarm testing): a
world in which everything happens at once hides what needs a quiet corner to go wrong.
"""

from functools import partial
from random import Random

import msgspec

START_MS = 1_700_000_000_000
DELAY_LEVELS = "1s 2s 5s 10s"
SEGMENT_SIZES = (96 * 1024, 160 * 1024, 512 * 1024)
QUEUE_FILE_SIZES = (200, 2_000, 20_000)
BODY_SIZE_MAX = 4_096
HALF_TIMEOUT_MS = 1_000  # a half that is younger is not asked for


class Plan(msgspec.Struct, kw_only=True):
    """Every choice that is made once for a world. Times in ms, probabilities from 0 to 1."""

    seed: int
    is_sync_flush: bool
    segment_size: int
    queue_file_size: int
    topics: dict[str, int]  # queues by name
    groups: list[str]
    client_count: int
    flow_client_count: int
    duration_ms: float
    think_ms: float  # between two requests of one client, on average
    kinds_off: list[str]
    big_bodies: float
    # the network
    latency_ms: float
    keeps_order: bool  # whether the frames of a connection arrive in order
    drop: float
    duplicate: float
    split: float
    disconnect_every_ms: float  # 0: never
    # the broker's machine
    tick_ms: float
    disk_ms: float
    sync_interval_ms: float
    checkpoint_ms: float
    crash_every_ms: float  # 0: never
    power_loss: float  # of crashes
    clean_stop: float  # of stops
    crash_in_recovery: float
    restart_after_ms: float
    half_check_ms: int  # between two rounds of check-backs; 0: none
    half_checks_max: int
    set_clock_every_ms: float  # 0: never
    set_clock_ms: float  # how far, forward or back
    full_every_ms: float  # between two times without room on the disk; 0: never
    full_for_ms: float
    clean_ms: int  # between two looks at how full the disk is
    segments_kept: int  # with more of them the disk is so full that the oldest go; 0: all stay
    popper_count: int = 0  # consumers by the message
    # the slave
    role: str = ""  # of the master; "": there is no slave
    slave_timeout_ms: int = 0  # for so long an answer of a SYNC_MASTER waits; 0: none waits
    is_slave_sync_flush: bool = True
    master_power_loss: float = 0.0  # of the master's crashes
    wire_ms: float = 0.0  # from machine to machine
    wire_kib_ms: float = 0.0  # for each KiB: how slow it is
    torn: float = 0.0
    part_every_ms: float = 0.0  # between two partitions; 0: never
    part_for_ms: float = 0.0
    slave_crash_every_ms: float = 0.0  # 0: never
    slave_power_loss: float = 0.0  # of its crashes
    slave_full_every_ms: float = 0.0  # 0: never
    both_die: float = 0.0  # of the slave's crashes
    loses_master: bool = False  # at the end of the faults the master's disk is lost
    promotes: bool = False  # then the slave is promoted, and its master may live


def plan_of(seed: int, kinds: list[str]) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: any number.
        kinds: the names of the kinds of requests, of which some are switched off.
    """
    random = Random(seed)

    sometimes = partial(_sometimes, random)
    is_sync_flush = random.random() < 0.65
    plan = Plan(
        seed=seed,
        is_sync_flush=is_sync_flush,
        segment_size=random.choice(SEGMENT_SIZES),
        queue_file_size=random.choice(QUEUE_FILE_SIZES),
        topics={f"topic-{n}": random.choice((1, 1, 2, 4)) for n in range(random.randint(1, 4))},
        groups=[f"group-{n}" for n in range(random.randint(1, 3))],
        client_count=random.randint(2, 8),
        flow_client_count=random.choice((0, 1, 1, 2)),
        duration_ms=random.choice((3_000.0, 8_000.0, 20_000.0)),
        think_ms=random.choice((20.0, 60.0, 200.0)),
        kinds_off=[name for name in kinds if random.random() < 0.2],
        big_bodies=sometimes(0.5, 0.1),
        latency_ms=random.choice((0.05, 0.5, 5.0)),
        keeps_order=random.random() < 0.6,
        drop=sometimes(0.5, random.choice((0.01, 0.1))),
        duplicate=sometimes(0.5, 0.05),
        split=sometimes(0.5, 0.3),
        disconnect_every_ms=sometimes(0.5, random.choice((500.0, 3_000.0))),
        tick_ms=random.choice((20.0, 20.0, 100.0)),
        disk_ms=random.choice((0.05, 0.5, 5.0)),
        sync_interval_ms=0.0 if is_sync_flush else random.choice((50.0, 500.0)),
        checkpoint_ms=random.choice((300.0, 2_000.0, 10_000.0)),
        crash_every_ms=sometimes(0.8, random.choice((500.0, 2_000.0, 6_000.0))),
        power_loss=random.choice((0.0, 0.5, 0.5, 1.0)),
        clean_stop=random.choice((0.0, 0.2)),
        crash_in_recovery=sometimes(0.5, 0.3),
        restart_after_ms=random.choice((10.0, 300.0)),
        half_check_ms=int(sometimes(0.6, random.choice((300, 1_000)))),
        half_checks_max=random.choice((1, 3, 15)),
        set_clock_every_ms=sometimes(0.3, random.choice((1_000.0, 4_000.0))),
        set_clock_ms=random.choice((50.0, 1_500.0, 20_000.0)),
        full_every_ms=sometimes(0.3, random.choice((1_000.0, 4_000.0))),
        full_for_ms=random.choice((100.0, 2_000.0)),
        clean_ms=random.choice((200, 1_000)),
        segments_kept=int(sometimes(0.3, random.choice((2, 4)))),
        popper_count=Random(f"{seed} poppers").choice((0, 1, 2, 4, 4, 7)),
    )
    role = random.choice(("", "", "ASYNC_MASTER", "SYNC_MASTER", "SYNC_MASTER"))
    return _with_slave(plan, role, random) if role else plan


def _sometimes(random: Random, probability: float, value: float) -> float:
    return value if random.random() < probability else 0.0


def _with_slave(plan: Plan, role: str, random: Random) -> Plan:
    sometimes = partial(_sometimes, random)
    timeout_ms = random.choice((300, 3_000))
    ending = random.choice(("lost", "lost", "promoted", "promoted", "calm", "calm", "calm"))
    return msgspec.structs.replace(
        plan,
        role=role,
        slave_timeout_ms=timeout_ms if role == "SYNC_MASTER" else 0,
        is_slave_sync_flush=random.random() < 0.7,
        wire_ms=random.choice((0.05, 0.5, 5.0)),
        wire_kib_ms=sometimes(0.3, random.choice((0.1, 2.0))),
        torn=sometimes(0.7, 0.5),
        part_every_ms=sometimes(0.5, random.choice((1_000.0, 4_000.0))),
        part_for_ms=random.choice((100.0, 1_000.0, 4_000.0)),
        slave_crash_every_ms=sometimes(0.7, random.choice((500.0, 2_000.0, 6_000.0))),
        slave_power_loss=random.choice((0.0, 0.5, 1.0)),
        slave_full_every_ms=sometimes(0.3, random.choice((1_000.0, 4_000.0))),
        both_die=random.choice((0.0, 0.3)),
        loses_master=ending == "lost",
        promotes=ending == "promoted",
        master_power_loss=random.choice((0.0, 0.0, 0.5, 1.0)),
    )
