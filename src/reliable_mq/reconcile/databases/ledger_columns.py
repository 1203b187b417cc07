"""The ledgers' tables for readers: their names, and their columns as Arrow types. Pure.

A ledger has the columns of its table, so a new column can be read at once. The content of a message
is read only on request. By default three columns replace it: its size, its checksum (as in a
record), and the digest of the whole message (`message_digest.py`).
"""

from collections.abc import Callable, Sequence
from functools import cache

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
)

from reliable_mq.database.sql_confirmation_table import confirmation_table
from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.database.sql_key_tables import business_key_table
from reliable_mq.database.sql_people_tables import audit_table, escalation_table
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.database.sql_types import UtcDateTime
from reliable_mq.errors import ConfigurationError

STUB, CONSUME_LOG, TOLD = "stub", "consume_log", "confirmation"
KEY, ESCALATION, AUDIT = "key", "escalation", "audit"
RUN, FINDING = "run", "finding"

_TABLES: dict[str, Callable[[MetaData, str], Table]] = {
    STUB: message_stub_table,
    CONSUME_LOG: consume_log_table,
    TOLD: confirmation_table,
    KEY: business_key_table,
    ESCALATION: escalation_table,
    AUDIT: audit_table,
    RUN: run_table,
    FINDING: finding_table,
}

CONTENT, CONTENT_SIZE, CONTENT_CRC = "content", "content_size", "content_crc"
CONTENT_HASH, MESSAGE_DIGEST = "content_hash", "message_digest"
DIGESTED = (
    *("message_id", "topic", "tag", "message_key", "ordering_key", "content_type"),
    "properties",
)
"""The columns in the digest of a message, in addition to its content."""
TIME = pa.timestamp("us", tz="UTC")


@cache
def table_of(name: str, prefix: str) -> Table:
    """Return the table of a ledger.

    Raises:
        ConfigurationError: when no ledger has this name.
    """
    if name not in _TABLES:
        raise ConfigurationError(f"no ledger is called {name!r}; there are {', '.join(_TABLES)}")
    return _TABLES[name](MetaData(), prefix)


def arrow_type(column: Column[object]) -> pa.DataType:
    """Return the Arrow type of a column of our tables."""
    kind = column.type
    if isinstance(kind, UtcDateTime):
        return TIME
    if isinstance(kind, Boolean):
        return pa.bool_()
    if isinstance(kind, BigInteger):
        return pa.int64()
    if isinstance(kind, Integer):
        return pa.int32()
    if isinstance(kind, Numeric):
        return pa.float64()
    if isinstance(kind, LargeBinary):
        return pa.binary()
    # Our types for text are decorators of String.
    if isinstance(getattr(kind, "impl_instance", kind), String):
        return pa.string()
    raise TypeError(f"{column}: {kind!r} has no Arrow type")


def stored_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of a table from which the given columns are made."""
    made = {CONTENT_SIZE, CONTENT_CRC, MESSAGE_DIGEST}
    stored = [CONTENT if name in made else name for name in columns]
    digested = DIGESTED if MESSAGE_DIGEST in columns else ()
    return list(dict.fromkeys((*stored, *digested)))


def _columns_of(name: str) -> dict[str, pa.DataType]:
    columns: dict[str, pa.DataType] = {}
    for column in table_of(name, "rmq_").columns:
        if column.name == CONTENT:
            columns |= {CONTENT_SIZE: pa.int32(), CONTENT_CRC: pa.int32()}
            columns |= {MESSAGE_DIGEST: pa.binary()}
        else:
            columns[column.name] = arrow_type(column)
    return columns


# The default columns of each table. A reader can request the content of stubs, too.
COLUMNS: dict[str, dict[str, pa.DataType]] = {name: _columns_of(name) for name in _TABLES}


def schema_of(name: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a ledger's rows. `columns` None: all except the content.

    Raises:
        ConfigurationError: when the ledger or a column does not exist, or a column is given twice.
    """
    table_of(name, "rmq_")
    known = COLUMNS[name]
    if CONTENT_CRC in known:
        known = known | {CONTENT: pa.binary()}
    wanted = list(COLUMNS[name]) if columns is None else list(columns)
    for column in wanted:
        if column not in known:
            raise ConfigurationError(
                f"{name!r} has no column {column!r}; there are {', '.join(known)}"
            )
    if len(set(wanted)) < len(wanted):
        raise ConfigurationError(f"a column is given twice: {', '.join(wanted)}")
    return pa.schema([(column, known[column]) for column in wanted])
