"""The pattern of a list: query parameters → a typed filter → a page of rows → HTML, CSV or JSON.

A list is a `RowList`: a value that says its columns, its fields and how a page is read. The address
of a page is its filter, so that it can be sent to a colleague. `ROW_LISTS` in `all_lists` has all.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from reliable_mq.console.sources import ConsoleSources
from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.plain_text import printable
from reliable_mq.reconcile.moments import parse_moment

PAGE_ROWS, PAGE_ROWS_MAX = 50, 500
EXPORT_ROWS, EXPORT_ROWS_MAX = 500, 1_000_000
FORMATS = ("html", "csv", "json")
VALUE_LENGTH_MAX = 1_000
_OWN = ("cursor", "limit", "format")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would run a cell that begins with one of these."""


class FilterFault(ConfigurationError):
    """A filter cannot be used; the text says which parameter, and what it takes."""


def no_place(cursor: str) -> FilterFault:
    """Return the fault of a cursor that is no place in its list."""
    return FilterFault(f"cursor is no place in this list: {printable(cursor, 60)!r}")


class ListColumn(NamedTuple):
    """A column: the name in a row, its heading, and how it is shown.

    `kind`: "text", "long" (a text that needs room), "message" (an id that leads to its timeline),
    "run", "run_file" or "group" (a name that leads to its findings or queues), "report" (a run
    whose report is downloaded), "time", "number", "words" (a list of them) or "state".
    """

    name: str
    title: str
    kind: str = "text"


class Field(NamedTuple):
    """A field of a filter: a query parameter.

    `kind`: "text", "choice" (of `choices`), "flag" (yes, no or nothing) or "moment".
    """

    name: str
    title: str
    kind: str = "text"
    choices: tuple[str, ...] = ()
    hint: str = ""


class WantedPage(NamedTuple):
    """A page that is asked for: the values of the fields that were given, and where it begins.

    `values`: text for "text" and "choice", whether it is "yes" for "flag", a time for "moment".
    `cursor` "": the first page; its text means something only to the list.
    """

    values: Mapping[str, Any]
    cursor: str
    limit: int
    database: str

    def text(self, name: str) -> str:
        """Return the value of a field of text; "": it was not given."""
        return str(self.values.get(name, ""))

    def agrees(self, name: str, has_it: object) -> bool:
        """Return whether a flag wants a row: "yes" those that have something, "no" the others."""
        return name not in self.values or self.values[name] == bool(has_it)


class ListPage(NamedTuple):
    """A page of rows.

    `next`: the cursor of the next one; "": this one is the last. `away`: a line for each source
    that is away. `notes`: what else a reader of the page has to know.
    """

    rows: Sequence[Mapping[str, Any]]
    next: str = ""
    away: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    leads: tuple[tuple[str, str], ...] = ()


class RowList(msgspec.Struct, frozen=True, kw_only=True):
    """A list.

    Attributes:
        name: the last part of its address.
        title: its heading.
        summary: a sentence below it.
        empty: what the page says if nothing matches: what that means, and what to do.
        columns: the columns, in order.
        fields: the fields of its filter.
        page: reads a page.
        of_database: whether it is of one database, which the parameter `database` names.
        id_of: returns the value of a row by which an action names it; None: rows cannot be marked.
        is_read_at_once: whether each page reads all rows before it, so that an export asks for one.
        exported: values of a row that only its downloads have, behind the columns.
        is_in_menu: whether the menu has it; without, links of other pages lead to it.
    """

    name: str
    title: str
    summary: str
    empty: str
    columns: tuple[ListColumn, ...]
    fields: tuple[Field, ...]
    page: Callable[[ConsoleSources, WantedPage], ListPage]
    of_database: bool = False
    id_of: Callable[[Mapping[str, Any]], str] | None = None
    is_read_at_once: bool = False
    exported: tuple[str, ...] = ()
    is_in_menu: bool = True

    @property
    def export_rows(self) -> int:
        """How many rows a page of an export has."""
        return EXPORT_ROWS_MAX if self.is_read_at_once else EXPORT_ROWS


def wanted_of(
    kind: RowList, query: Sequence[tuple[str, str]], databases: Sequence[str]
) -> WantedPage:
    """Return the page that query parameters ask for. An empty parameter was not given.

    Raises:
        FilterFault: a parameter is unknown, is given twice, or has a value that it does not take.
    """
    fields = {each.name: each for each in kind.fields}
    known = {*fields, *_OWN, *(("database",) if kind.of_database else ())}
    given: dict[str, str] = {}
    for name, value in query:
        if name not in known:
            raise FilterFault(
                f"there is no filter {printable(name, 60)!r}; this list has"
                f" {', '.join(sorted(known))}"
            )
        if name in given:
            raise FilterFault(f"{name} is given twice: give it once")
        if len(value) > VALUE_LENGTH_MAX:
            raise FilterFault(f"{name} has at most {VALUE_LENGTH_MAX} characters")
        if "\0" in value:
            raise FilterFault(f"{name} has a character that no row has")
        given[name] = value
    values = {name: _value(field, given[name]) for name, field in fields.items() if given.get(name)}
    database = given.get("database") or databases[0]
    if database not in databases:
        raise FilterFault(
            f"there is no database {printable(database, 60)!r}; known: {', '.join(databases)}"
        )
    return WantedPage(values, given.get("cursor", ""), _limit(given.get("limit", "")), database)


def _value(field: Field, text: str) -> Any:
    if field.kind == "flag":
        if text not in ("yes", "no"):
            raise FilterFault(f"{field.name} takes yes or no, not {printable(text, 60)!r}")
        return text == "yes"
    if field.kind == "choice" and text not in field.choices:
        raise FilterFault(
            f"{field.name} takes {', '.join(field.choices)}, not {printable(text, 60)!r}"
        )
    if field.kind == "moment":
        try:
            return parse_moment(text, field.name, datetime.now(UTC))
        except ConfigurationError as error:
            raise FilterFault(printable(str(error), 200)) from error
    return text


def _limit(text: str) -> int:
    if not text:
        return PAGE_ROWS
    if not is_number(text, PAGE_ROWS_MAX):
        raise FilterFault(f"limit takes 1 to {PAGE_ROWS_MAX}, not {printable(text, 60)!r}")
    return int(text)


def is_number(text: str, most: int) -> bool:
    """Whether a text is a number from 1 to `most`, in ASCII digits, and not longer than `most`."""
    is_short = len(text) <= len(str(most))
    return is_short and text.isascii() and text.isdigit() and 1 <= int(text) <= most


def number_of(cursor: str) -> int | None:
    """Return the number that a cursor is; None for "".

    Raises:
        FilterFault: it is no number.
    """
    if not cursor:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise no_place(cursor)
    return int(cursor)


def format_of(query: Mapping[str, str]) -> str:
    """Return the format that is asked for.

    Raises:
        FilterFault: there is no such format.
    """
    wanted = query.get("format") or FORMATS[0]
    if wanted not in FORMATS:
        raise FilterFault(f"format takes {', '.join(FORMATS)}, not {printable(wanted, 60)!r}")
    return wanted


def address(kind: RowList, query: Mapping[str, str], **changes: str) -> str:
    """Return the address of a list with these parameters; an empty value takes one away."""
    merged = {**query, **changes}
    text = urlencode({name: value for name, value in merged.items() if value})
    return f"/{kind.name}{f'?{text}' if text else ''}"


def all_rows(
    kind: RowList, sources: ConsoleSources, wanted: WantedPage, found: ListPage
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of all pages from the found one on, up to a million.

    Raises:
        Unavailable: a source has gone away since the first page.
    """
    page = wanted._replace(limit=kind.export_rows)
    count, was_away = 0, bool(found.away)
    while True:
        yield from found.rows
        count += len(found.rows)
        if not found.next or count >= EXPORT_ROWS_MAX:
            return
        page = page._replace(cursor=found.next)
        found = kind.page(sources, page)
        if found.away and not was_away:  # its rows are missing from here on
            raise Unavailable("; ".join(found.away))


def csv_lines(kind: RowList, rows: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Yield rows as lines of CSV, the headings first. A cell is never a formula."""
    names = [*(each.name for each in kind.columns), *kind.exported]
    yield _line(names)
    for row in rows:
        yield _line([_cell(row.get(name)) for name in names])


def _line(cells: Sequence[str]) -> str:
    written = io.StringIO()
    csv.writer(written).writerow(cells)
    return written.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        value = ", ".join(str(each) for each in value)
    text = str(value)
    is_formula = isinstance(value, str) and text.startswith(_FORMULA)
    return f"'{text}" if is_formula else text


def json_lines(rows: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Yield rows as a JSON array, a row on each line."""
    start = "[\n"
    for row in rows:
        yield start + json.dumps(dict(row), default=str, ensure_ascii=False)
        start = ",\n"
    yield "[]\n" if start == "[\n" else "\n]\n"
