"""What is tried at real servers: by name, how often, with which settings."""

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from tests.fuzz import big_numbers, big_queues, big_tables, big_texts, many_brokers
from tests.fuzz.scene import MIB, Scene, Settings
from tests.fuzz.served_process import Ways
from tests.waiting import NEVER_BUSY, allowed_seconds


class Attack(NamedTuple):
    """One kind of case.

    Args:
        play: does it.
        settings: returns how the servers are run for it.
        weight: how often it comes.
        restarts: whether the servers are always stopped and started again afterwards.
    """

    play: Callable[[Scene], None]
    settings: Callable[[Random], Settings] = lambda _random: Settings()
    weight: int = 1
    restarts: bool = False


def _settings(**values: object) -> Callable[[Random], Settings]:
    return lambda _random: Settings(**values)  # type: ignore[arg-type]


def _filtering(random: Random) -> Settings:
    return Settings(properties={"enablePropertyFilter": random.choice(("true", "false"))})


def _impatient(_random: Random) -> Settings:
    """Return servers that wait for the rest of a frame for seconds only.

    The broker's own connection to its name server must not be silent for so long.
    """
    return Settings(
        ways=Ways(idle_seconds=allowed_seconds(big_numbers.IDLE_SECONDS)),
        properties={"registerNameServerPeriod": "500"},
    )


_PULLING = {**NEVER_BUSY, "enablePropertyFilter": "true"}

ATTACKS: Mapping[str, Attack] = {
    "fields": Attack(big_texts.long_fields, _settings(memory_max=192 * MIB), 2),
    "bodies": Attack(big_texts.long_bodies, _settings(memory_max=192 * MIB), 2),
    "filters": Attack(big_texts.filters, _filtering),
    "tags": Attack(big_texts.tags),
    # One connection may fill 32 MiB: docs/reference/broker.md, "Budgets". The rest is under way.
    "groups": Attack(big_texts.many_groups, _settings(memory_max=(3 * 32 + 64) * MIB)),
    "pulls": Attack(big_queues.large_pulls, _settings(properties=_PULLING)),
    "held": Attack(big_queues.held_pulls, _settings(properties=_PULLING)),
    "sends": Attack(big_queues.large_sends, _settings(properties=NEVER_BUSY)),
    # 4 million offsets, and their text while it is written: docs/reference/broker.md, "Budgets".
    "multiplied": Attack(big_queues.multiplied_ids, _settings(memory_max=256 * MIB)),
    "invented": Attack(big_queues.invented_ids, _settings(memory_max=64 * MIB)),
    "registrations": Attack(big_tables.registrations, _settings(memory_max=384 * MIB)),
    "brokers": Attack(many_brokers.many_brokers, _settings(memory_max=384 * MIB)),
    "at once": Attack(many_brokers.at_once, _settings(memory_max=384 * MIB)),
    "settings": Attack(big_tables.settings),
    "topics": Attack(
        big_tables.many_topics,
        _settings(prepare=big_tables.prepare_topics, memory_max=256 * MIB),
        restarts=True,
    ),
    "numbers": Attack(big_tables.numbers, _settings(properties=big_tables.QUICK)),
    # The totals are those of docs/reference/broker.md, "Budgets", and 64 MiB for what is under way.
    "partial": Attack(big_numbers.partial_frames, _settings(memory_max=(256 + 64) * MIB)),
    "slow": Attack(big_numbers.slow_frames, _impatient),
    "silent": Attack(
        big_numbers.silent_readers,
        _settings(memory_max=(256 + 32 * 4 + 64) * MIB, properties=NEVER_BUSY, delays=False),
    ),
    "crowd": Attack(big_numbers.crowd, _settings(delays=False)),
    "descriptors": Attack(
        big_numbers.few_descriptors,
        _settings(
            ways=Ways(descriptors=big_numbers.FEW_DESCRIPTORS),
            properties=NEVER_BUSY,
            delays=False,
        ),
        restarts=True,
    ),
}
