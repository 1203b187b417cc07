"""The modes in which every crash point is tried, as a table."""

import itertools
from collections.abc import Collection
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Which process of the application dies."""

    PRODUCER = "producer"  # places orders; its relay sends them
    WORKER = "worker"  # consumes: one commit, receipt first, batch, by a business key
    SCHEDULER = "scheduler"  # sends again, confirms what was left behind, escalates
    ANSWERER = "answerer"  # is asked what became of the halves of a process that died
    KEEPER = "keeper"  # removes stubs, consume logs, keys and results that are old
    PERSON = "person"  # retries a dead letter and a stub by hand


class Kind(StrEnum):
    """The database."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"
    MYSQL = "MySQL"  # or MariaDB, whichever is installed


class Databases(StrEnum):
    """Where stubs, consume logs and effects lie."""

    ONE = "one database"
    TWO = "two databases"  # stubs in both; two of the groups have their effects in the second


class Form(StrEnum):
    """How messages leave."""

    OUTBOX = "outbox"
    SHARED = "shared relay"  # a process that commits sends nothing; workers and schedulers do
    HALF = "half"


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
    databases: Databases
    form: Form
    redis: Redis

    def __str__(self) -> str:
        return f"{self.kind}, {self.databases}, {self.form}, Redis {self.redis}"


USUAL = (Kind.SQLITE, Kind.POSTGRESQL)
"""The databases that are there on every machine; the third one is tried when it is asked for."""
MODES = tuple(itertools.starmap(Mode, itertools.product(Kind, Databases, Form, Redis)))

FORMS = {
    Role.ANSWERER: {Form.HALF},  # nobody is asked about anything else
    Role.KEEPER: {Form.OUTBOX},  # what is old has long left, in whatever way
    Role.PERSON: {Form.OUTBOX, Form.SHARED},  # who sends what is retried: scheduler, or any relay
}
"""The forms that make a difference to a role; to those that are not named all of them do."""


def modes_of(role: Role, kinds: Collection[Kind] = USUAL) -> tuple[Mode, ...]:
    """Return the modes that make a difference to a role, on these databases.

    Only workers talk to Redis, and who relays does not.
    """
    return tuple(
        mode
        for mode in MODES
        if mode.kind in kinds
        and mode.form in FORMS.get(role, set(Form))
        and (mode.redis is Redis.UP or (role is Role.WORKER and mode.form is not Form.SHARED))
    )


_S, _P = USUAL
_1, _2 = Databases
_OUTBOX, _SHARED, _HALF = Form
SOME = frozenset(
    {
        *(Mode(_S, _1, _OUTBOX, Redis.UP), Mode(_S, _2, _HALF, Redis.UP)),
        *(Mode(_P, _1, _HALF, Redis.UP), Mode(_P, _2, _OUTBOX, Redis.UP)),
        *(Mode(_S, _2, _SHARED, Redis.UP), Mode(_P, _1, _SHARED, Redis.UP)),
        *(Mode(_S, _1, _OUTBOX, Redis.FLUSHED), Mode(_P, _2, _HALF, Redis.FLUSHED)),
        *(Mode(_S, _2, _OUTBOX, Redis.LOST), Mode(_P, _1, _HALF, Redis.LOST)),
        *(Mode(_S, _1, _HALF, Redis.DOWN), Mode(_P, _2, _OUTBOX, Redis.DOWN)),
        *(Mode(_S, _2, _HALF, Redis.FAILING_OVER), Mode(_P, _1, _OUTBOX, Redis.FAILING_OVER)),
    }
)
"""Modes of the usual databases among which any two values of two columns meet that can."""


def is_some(mode: Mode) -> bool:
    """Say whether a mode is among some; of MySQL's those are whose like is of PostgreSQL's."""
    if mode.kind is Kind.MYSQL:
        mode = msgspec.structs.replace(mode, kind=Kind.POSTGRESQL)
    return mode in SOME
