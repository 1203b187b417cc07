"""The modes in which every crash point is tried, as a table."""

import itertools
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Which process of the application dies."""

    PRODUCER = "producer"  # places orders; its relay sends them
    WORKER = "worker"  # consumes as four groups: one commit, receipt first, batch, and what follows
    SCHEDULER = "scheduler"  # sends again, confirms what was left behind, escalates
    HALVES = "producer of halves"  # places orders by half messages; its relay ends them
    ANSWERER = "answerer"  # is asked what became of the halves of a process that died


class Kind(StrEnum):
    """The database."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"


class Redis(StrEnum):
    """What happens to Redis."""

    UP = "up"
    FLUSHED = "flushed"  # at the death
    LOST = "lost"  # from the death on
    DOWN = "down"  # all along
    FAILING_OVER = "failing over"  # after the first claim, to a replica that never heard of it


class Mode(msgspec.Struct, frozen=True, order=True):
    """One column of the matrix."""

    kind: Kind
    redis: Redis

    def __str__(self) -> str:
        return f"{self.kind}, Redis {self.redis}"


MODES = tuple(itertools.starmap(Mode, itertools.product(Kind, Redis)))


def modes_of(role: Role) -> tuple[Mode, ...]:
    """Return the modes in which a role can behave differently: only workers talk to Redis."""
    return tuple(mode for mode in MODES if role is Role.WORKER or mode.redis is Redis.UP)
