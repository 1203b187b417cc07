"""Read the rows of a ledger as Arrow batches, by the best driver for the database.

Receives a query of a ledger. Returns batches of exactly the requested columns, in the types of
`ledger_columns`, for every kind of database. ADBC drivers read PostgreSQL and SQLite (`sql_adbc`).
SQLAlchemy reads all others row by row. It never writes.

In text that is not valid UTF-8, the invalid bytes are replaced. A time outside the range of
datetime becomes `sql_types.EARLIEST` or `LATEST`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    Numeric,
    Select,
    Table,
    case,
    cast,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite

from reliable_mq.database.sql_types import EARLIEST, LATEST, UtcDateTime, dialect_family
from reliable_mq.message_digest import DIGEST_SIZE, body_hash_of, digest_of, sent_properties
from reliable_mq.reconcile.databases import sql_adbc
from reliable_mq.reconcile.databases.ledger_columns import (
    CONTENT,
    CONTENT_CRC,
    CONTENT_HASH,
    CONTENT_SIZE,
    DIGESTED,
    MESSAGE_DIGEST,
    TIME,
    schema_of,
    stored_columns,
    table_of,
)
from reliable_mq.reconcile.databases.sql_conditions import EVERYTHING, KeyRange, clause, in_range
from reliable_mq.reconcile.databases.sql_connection import connected, paced, sync_url
from reliable_mq.reconcile.source_filters import Condition
from reliable_mq.wire.record import CRC_MASK, body_checksum

_BATCH_SIZE = 4 * 1024 * 1024
_PACED_BATCH_SIZE = 128 * 1024
"""Bytes of a batch if the reader sleeps between batches: some milliseconds of a server's work."""
_ROW_SIZE = 400  # bytes, without the content
_BUFFERED_ROWS = 16  # rows with content that the driver may read ahead

NO_PROPERTIES = "{}"
_properties = msgspec.json.Decoder(dict[str, str])
_FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
_AFTER_LAST = "'10000-01-01+00'"


@dataclass(frozen=True)
class LedgerQuery:
    """A query of a ledger.

    Attributes:
        ledger: its name.
        prefix: the prefix of the table names.
        columns: the columns to read, from `ledger_columns`.
        part: the range of keys.
        conditions: further conditions, joined by AND.
        share: the part of the time that reads may take; the reader sleeps for the rest.
    """

    ledger: str
    prefix: str
    columns: tuple[str, ...]
    part: KeyRange = EVERYTHING
    conditions: tuple[Condition, ...] = ()
    share: float = 1.0

    @property
    def batch_size(self) -> int:
        """Approximate bytes of a batch. A single row may be larger."""
        return _BATCH_SIZE if self.share == 1 else _PACED_BATCH_SIZE

    @property
    def batch_rows(self) -> int:
        """Most rows of a batch, for drivers that count rows."""
        return self.batch_size // _ROW_SIZE


def read(url: str, asked: LedgerQuery, *, by_rows: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the requested rows without order, in batches of at most about 4 MiB.

    Args:
        url: the SQLAlchemy URL of the database.
        asked: the query.
        by_rows: read by SQLAlchemy even if there is an Arrow driver. The result is the same.

    Raises:
        ConfigurationError: the ledger or a column does not exist.
        Unavailable, sqlalchemy.exc.SQLAlchemyError: the database failed.
    """
    schema = schema_of(asked.ledger, asked.columns)
    name = "" if by_rows else sync_url(url).get_backend_name()
    batches = _READERS.get(name, _read_rows)(url, asked)
    for batch in paced(batches, asked.share):
        if batch.num_rows:
            yield conformed(batch, schema)


def statement(asked: LedgerQuery, dialect: Dialect, *, by_rows: bool) -> Select[Any]:
    """Return the statement for SQLAlchemy (`by_rows`) or for an Arrow driver.

    MySQL computes the checksums of contents itself, because its driver would be slow with contents.
    The other databases send the contents, and `conformed` computes the checksums: for PostgreSQL it
    is cheaper to send a byte than to process it.
    """
    table = table_of(asked.ledger, asked.prefix)
    family = dialect_family(dialect.name)
    chosen = [
        (_column if by_rows else _raw_column)(table, name, family).label(name)
        for name in _sources(asked, family)
    ]
    held = [clause(table, each, family) for each in asked.conditions]
    return select(*chosen).where(in_range(table, asked.part), *held)


def _sources(asked: LedgerQuery, family: str) -> list[str]:
    """Return the columns to select. The content replaces columns that are computed from it here."""
    if {CONTENT_CRC, MESSAGE_DIGEST}.isdisjoint(asked.columns):
        return list(asked.columns)
    if family != "mysql":
        return stored_columns(asked.columns)
    if MESSAGE_DIGEST not in asked.columns:
        return list(asked.columns)
    others = [name for name in asked.columns if name != MESSAGE_DIGEST]
    return list(dict.fromkeys((*others, *DIGESTED, CONTENT_HASH)))


def _column(table: Table, name: str, family: str) -> ColumnElement[Any]:
    if name == CONTENT_SIZE:
        length = func.length if family == "sqlite" else func.octet_length
        return length(table.c.content)
    if name == CONTENT_CRC:
        return func.crc32(table.c.content).op("&")(literal_column(str(CRC_MASK)))
    if name == CONTENT_HASH:
        return func.unhex(func.sha2(table.c.content, 256))
    column: ColumnElement[Any] = table.c[name]
    return cast(column, Double) if isinstance(column.type, Numeric) else column


def _raw_column(table: Table, name: str, family: str) -> ColumnElement[Any]:
    """Return a column in a form for an Arrow driver: times as such, or as texts on SQLite."""
    column = _column(table, name, family)
    if not isinstance(column.type, UtcDateTime):
        return column
    if family == "sqlite":
        return type_coerce(column, DateTime)
    # Arrow types and datetime have no times before the year 1, after 9999, or infinite ones.
    raw: ColumnElement[Any] = type_coerce(column, DateTime(timezone=True))
    return case(
        (column < _FIRST_MOMENT, _literal(EARLIEST)),
        (column >= literal_column(_AFTER_LAST), _literal(LATEST)),
        else_=raw,
    )


def _literal(moment: datetime) -> ColumnElement[Any]:
    return literal_column(f"TIMESTAMPTZ '{moment.isoformat()}'", DateTime(timezone=True))


def _text(query: Select[Any], dialect: Dialect) -> str:
    return str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))


def _postgres_dialect() -> Dialect:
    # Do not double percent signs (for a driver) or backslashes (for old servers).
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    dialect._backslash_escapes = False
    return dialect


def postgres_text(asked: LedgerQuery) -> str:
    """Return the text of the statement for PostgreSQL."""
    dialect = _postgres_dialect()
    return _text(statement(asked, dialect, by_rows=False), dialect)


def _read_postgres(url: str, asked: LedgerQuery) -> Iterator[pa.RecordBatch]:
    return sql_adbc.read_postgres(sync_url(url), postgres_text(asked), asked.batch_size)


# SQLite's driver takes the type of a column from its value in the first row.
_EXAMPLES = {
    pa.string(): "''",
    pa.binary(): "x''",
    pa.float64(): "0.0",
    TIME: "''",
}


def _read_sqlite(url: str, asked: LedgerQuery) -> Iterator[pa.RecordBatch]:
    dialect: Dialect = sqlite.dialect()
    query = statement(asked, dialect, by_rows=False)
    kinds = schema_of(asked.ledger, [column.name for column in query.selected_columns])
    example = ", ".join(
        f"{_EXAMPLES.get(field.type, '0')} AS {dialect.identifier_preparer.quote(field.name)}"
        for field in kinds
    )
    rows = asked.batch_rows
    if CONTENT in kinds.names:
        rows = _rows_of_batch(url, asked)
    text = f"SELECT {example} UNION ALL {_text(query, dialect)}"
    batches = sql_adbc.read_sqlite(sync_url(url), text, rows)
    for number, batch in enumerate(batches):
        yield batch.slice(1) if number == 0 else batch


def _rows_of_batch(url: str, asked: LedgerQuery) -> int:
    """Return how many rows of the largest content fit into a batch, for SQLite's driver."""
    table = table_of(asked.ledger, asked.prefix)
    held = [clause(table, each, "sqlite") for each in asked.conditions]
    largest = select(func.max(func.length(table.c.content)))
    with connected(url) as connection:
        size = connection.scalar(largest.where(in_range(table, asked.part), *held)) or 1
    return max(1, min(asked.batch_rows, asked.batch_size // size))


_READERS: dict[str, Callable[[str, LedgerQuery], Iterator[pa.RecordBatch]]] = {
    "postgresql": _read_postgres,
    "sqlite": _read_sqlite,
}


def _read_rows(url: str, asked: LedgerQuery) -> Iterator[pa.RecordBatch]:
    schema = schema_of(asked.ledger, asked.columns)
    with connected(url) as connection:
        query = statement(asked, connection.dialect, by_rows=True)
        ahead = _BUFFERED_ROWS if CONTENT in schema.names else asked.batch_rows
        options = {"stream_results": True, "max_row_buffer": ahead}
        result = connection.execution_options(**options).execute(query)
        names = tuple(result.keys())
        for rows in _bounded(result, names, asked):
            yield _batch_of_rows(names, rows, schema)


def _bounded(
    rows: Iterable[Sequence[Any]], names: Sequence[str], asked: LedgerQuery
) -> Iterator[list[Sequence[Any]]]:
    """Gather rows into batches, limited by their number and by the size of their contents."""
    place = names.index(CONTENT) if CONTENT in names else None
    gathered: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += len(row[place]) if place is not None else 0
        if len(gathered) >= asked.batch_rows or size >= asked.batch_size:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _batch_of_rows(
    names: Sequence[str], rows: Sequence[Sequence[Any]], schema: pa.Schema
) -> pa.RecordBatch:
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return pa.record_batch({name: _array(values, schema, name) for name, values in columns})


def _array(values: Sequence[Any], schema: pa.Schema, name: str) -> pa.Array:
    kind = schema.field(name).type if name in schema.names else pa.binary()
    return pa.array(values, type=kind)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a driver's rows to `schema`, and compute the columns that depend on the content."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if CONTENT_CRC in schema.names and CONTENT_CRC not in columns:
        columns[CONTENT_CRC] = checksums(columns[CONTENT])
    if CONTENT_SIZE in schema.names and CONTENT_SIZE not in columns:
        columns[CONTENT_SIZE] = pc.binary_length(columns[CONTENT])
    if MESSAGE_DIGEST in schema.names:
        columns[MESSAGE_DIGEST] = message_digests(columns)
    return pa.record_batch(
        [_cast(columns[field.name], field.type) for field in schema], schema=schema
    )


def checksums(contents: pa.BinaryArray) -> pa.Array:
    """Return the checksum of each content, as a record has it."""
    _, offsets, values = contents.buffers()
    data = memoryview(values or b"")
    first = contents.offset
    ends = memoryview(offsets).cast("i")[first : first + len(contents) + 1].tolist()
    found = [body_checksum(data[begin:end]) for begin, end in pairwise(ends)]
    return pc.if_else(contents.is_valid(), pa.array(found, type=pa.int32()), None)


def message_digests(columns: Mapping[str, pa.Array]) -> pa.Array:
    """Return the digest of each stub's message. Null: its properties are invalid.

    Args:
        columns: `DIGESTED`, and the content or its SHA-256 (`CONTENT_HASH`).
    """
    texts = [columns[name].cast(pa.string()).to_pylist() for name in DIGESTED]
    hashes = columns.get(CONTENT_HASH)
    bodies = columns[CONTENT].to_pylist() if hashes is None else hashes.to_pylist()
    hash_of = body_hash_of if hashes is None else bytes
    found = [
        _digest(row, hash_of(body)) if body is not None else None
        for row, body in zip(zip(*texts, strict=True), bodies, strict=True)
    ]
    return pa.array(found, type=pa.binary())


def _digest(row: Sequence[str], body_hash: bytes) -> bytes | None:
    message_id, topic, tag, key, ordering_key, content_type, properties = row
    own: dict[str, str] = {}
    if properties != NO_PROPERTIES:
        try:
            own = _properties.decode(properties)
        except (msgspec.MsgspecError, TypeError):
            return None
    sent = sent_properties(message_id, tag, key, ordering_key, content_type, own)
    return digest_of(topic, sent, body_hash)[:DIGEST_SIZE]


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return _readable(column) if kind == pa.string() else column
    if kind == TIME and pa.types.is_string(column.type):
        return _times(column)
    return column.cast(kind)


def _readable(texts: pa.StringArray) -> pa.StringArray:
    """Return texts as valid UTF-8. SQLite accepts any bytes, and one bad row must not end a run."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary()).to_pylist()
        said = [each if each is None else each.decode(errors="replace") for each in raw]
        return pa.array(said, type=pa.string())
    return texts


def _times(texts: pa.StringArray) -> pa.Array:
    try:
        return texts.cast(pa.timestamp("us")).cast(TIME)
    except pa.ArrowInvalid:
        read_one = UtcDateTime().process_result_value
        dialect: Dialect = sqlite.dialect()
        return pa.array([read_one(text, dialect) for text in texts.to_pylist()], type=TIME)
