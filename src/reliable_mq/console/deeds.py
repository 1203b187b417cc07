"""The pattern of a deed: what a person lets be done to rows of a list, after a look at a preview.

A deed is a `Deed`: a value with its role, how it is previewed, and how its parts are done. `DEEDS`
in `all_deeds` has all. A preview travels through the browser, signed. So nothing is kept for a
person who does not go on. A preview is good for an hour, and for one start only.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

import msgspec

from reliable_mq.console.lists import RowList
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Part
from reliable_mq.decodable import decodable
from reliable_mq.errors import ReliableMQError

RATE, RATE_MAX = 500, 10_000
"""Rows a second."""
PREVIEW_SECONDS = 3_600.0
"""A preview is good for this time: what it says could double is old then."""
WHY_LENGTH_MAX = 500
MARKED_MAX = 500


class NothingToDo(ReliableMQError):
    """A deed cannot be previewed: the text says what is missing."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a person has chosen.

    `ids`: those that were marked; empty: all that `query` matches. `query`: the filter of the list,
    as an address has it. `more`: what else the form of a deed asked for.
    """

    database: str = ""
    query: dict[str, str] = {}
    ids: list[str] = []
    more: dict[str, str] = {}


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a deed would do, as it was seen at a moment.

    Attributes:
        total: how many rows.
        lines: how many of each topic and group, the most first.
        happens: what will happen, in sentences.
        doubles: what could happen twice, in sentences.
        seen_at: when it was seen, by the clock of the database.
        seen: when each marked row was last changed. Only these are touched if `ids` were chosen.
        left_out: sentences about marked rows to which it cannot be done.
    """

    total: int
    lines: list[str]
    happens: list[str]
    doubles: list[str]
    seen_at: datetime
    seen: dict[str, datetime] = {}
    left_out: list[str] = []


@decodable
class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """What a page of a preview sends back.

    `number` becomes that of the work. `made`: when, in seconds since the epoch.
    """

    number: str
    made: float
    deed: str
    user: str
    chosen: Chosen
    preview: Preview


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person can let be done.

    Attributes:
        name: names it in a form.
        title: what a button says.
        role: who may.
        of_list: the list whose rows it takes; None: it has a form of its own elsewhere.
        look: returns the preview of chosen rows.
        parts: does it, part by part.
        is_final: it cannot be undone; its button says so.
        back: the address of the page that its form is on, without `of_list`.
        moments: the names of its fields that take a time, such as "-1h".
        typed: returns the name that a person has to type; None: nothing has to be typed.
    """

    name: str
    title: str
    role: Role
    of_list: RowList | None
    look: Callable[[ConsoleSources, Chosen], Preview]
    parts: Callable[[ConsoleSources, Sealed, Order], Iterator[Part]]
    is_final: bool = False
    back: str = "/"
    moments: tuple[str, ...] = ()
    typed: Callable[[ConsoleSources, Chosen], str] | None = None

    @property
    def place(self) -> str:
        """The address of the page that its form is on."""
        return f"/{self.of_list.name}" if self.of_list else self.back


def typed_fault(deed: Deed, sources: ConsoleSources, chosen: Chosen, text: str) -> str:
    """Return what is wrong with the name that a person has typed; "": it is the right one."""
    name = text if deed.typed is None else deed.typed(sources, chosen)
    if text == name:
        return ""
    return f"type {name} to say that this is meant: what was typed is another name"


def counted(counts: Mapping[str, int], what: str, shown: int = 12) -> list[str]:
    """Return a line for each of the largest counts, and one for the rest."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    lines = [f"{number:,} {what} {name}" for name, number in ordered[:shown]]
    rest = ordered[shown:]
    if rest:
        lines.append(f"{sum(number for _, number in rest):,} of {len(rest)} others")
    return lines


def order_of(sealed: Sealed, deed: Deed, actor: str, why: str, rate: int) -> Order:
    """Return the order that a person gives after a preview."""
    return Order(
        number=sealed.number,
        title=deed.title,
        back=deed.place,
        actor=actor,
        why=why,
        rate=rate,
        total=sealed.preview.total,
    )
