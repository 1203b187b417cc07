"""Checks of the database server: writes, isolation, durability and limits."""

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError

from reliable_mq.database.sql_faults import fault_line, is_database_busy, is_missing_column
from reliable_mq.database.sql_types import is_missing_table
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.doctor.sql_rights import lacking_rights, statement_without_rows
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX

_PACKET_SIZE_MIN = 3 * MESSAGE_BODY_SIZE_MAX
"""Bytes of a statement with the largest body, of which every byte is escaped, and its row."""
_SYNCHRONOUS_FULL = 2  # of SQLite
_LET_US_WRITE = {
    "postgresql": "default_transaction_read_only = off for this database and role",
    "mysql": "give the address of the primary, or SET GLOBAL read_only = OFF",
    "sqlite": "let this account write the file and its folder, and open it without mode=ro",
}


def writes(context: CheckContext, report: CheckFindings) -> None:
    """The database accepts the writes of an application, and this account has the rights.

    The check uses statements without rows: they change nothing, but a read-only server refuses
    them.
    """
    database = context.database
    # A new connection: in a read snapshot of SQLite, a write fails if others have written since.
    with database.engine.connect() as connection:
        if database.dialect == "postgresql" and connection.scalar(select(func.pg_is_in_recovery())):
            report.error(
                "this is a standby, which accepts no writes",
                "give the address of the primary; with several hosts in the URL, "
                "target_session_attrs=read-write finds it",
            )
            return
        for each in lacking_rights(connection, database):
            report.error(
                f"this account may not write all that it must: it lacks {each}", each.grant
            )
        if report.findings:
            return
        try:
            for table in (database.stubs, database.logs):
                for right in ("INSERT", "UPDATE"):
                    connection.execute(statement_without_rows(table, right))
        except DBAPIError as error:
            if is_missing_table(error) or is_missing_column(error) or is_database_busy(error):
                raise  # the first two are told by the check of the tables
            report.error(
                f"the database accepts no writes: {fault_line(error)}",
                _LET_US_WRITE[database.dialect],
            )
            return
        if database.dialect == "mysql" and _variables(connection, "read_only") == {
            "read_only": "ON"
        }:
            report.warn(
                "read_only is ON, but this account may write: this may be a replica",
                "give the address of the primary, and an account without SUPER",
            )
    if not report.findings:
        report.ok("all tables can be written")


def isolation(context: CheckContext, report: CheckFindings) -> None:
    """A statement sees all commits before its begin: READ COMMITTED.

    Two groups may confirm a stub at the same time. The second waits for the first one's lock, and
    must then see its row (P2, P4).
    """
    connection, database = context.connection, context.database
    level = _isolation_level(connection, database.dialect)
    wanted = "SERIALIZABLE" if database.dialect == "sqlite" else "READ COMMITTED"
    if level != wanted:
        report.error(
            f"transactions are {level}: a confirmation may not see the one that it waited for",
            "let our connections have READ COMMITTED (PostgreSQL: ALTER ROLE … SET "
            "default_transaction_isolation = 'read committed')",
        )
    if database.dialect == "mysql" and _variables(connection, "log_bin", "binlog_format") == {
        "log_bin": "ON",
        "binlog_format": "STATEMENT",
    }:
        report.error(
            "binlog_format is STATEMENT, with which the server refuses to write in READ COMMITTED",
            "SET GLOBAL binlog_format = 'ROW', and in the server's configuration",
        )
    if database.dialect == "sqlite":
        mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
        if mode != "wal":
            report.error(
                f"journal_mode is {mode}: readers and the writer wait for each other",
                "put the file on a local disk, where SQLite can use WAL",
            )
    if not report.findings:
        report.ok(level)


def _isolation_level(connection: Connection, dialect: str) -> str:
    if dialect == "sqlite":
        return "SERIALIZABLE"  # one writer at a time, with any setting
    if dialect == "postgresql":
        level = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
    else:
        names = ("transaction_isolation", "tx_isolation")  # MariaDB has the first since 11.1
        (level, *_) = _variables(connection, *names, scope="SESSION").values()
    return str(level).upper().replace("-", " ")


def durability(context: CheckContext, report: CheckFindings) -> None:
    """Commits survive a power failure (P1, P2, P4)."""
    connection, database = context.connection, context.database
    if database.dialect == "postgresql":
        for name, remedy in (
            ("fsync", "fsync = on"),
            ("full_page_writes", "full_page_writes = on"),
            ("synchronous_commit", "synchronous_commit = on, or local"),
        ):
            value = str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())
            if value == "off":
                report.error(
                    f"{name} is off: a commit may be lost, and with it its message", remedy
                )
    elif database.dialect == "mysql":
        _mysql_durability(connection, report)
    else:
        level = int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
        if level < _SYNCHRONOUS_FULL:
            report.error(
                f"synchronous is {level}: a commit may be lost, and with it its message",
                "let our connections have PRAGMA synchronous = FULL",
            )
    if not report.findings:
        report.ok("commits are flushed to disk")


def _mysql_durability(connection: Connection, report: CheckFindings) -> None:
    flush = "innodb_flush_log_at_trx_commit"
    found = _variables(connection, flush, "log_bin", "sync_binlog", "innodb_doublewrite")
    if found[flush] != "1":
        report.error(
            f"{flush} is {found[flush]}: a commit may be lost, and with it its message",
            f"SET GLOBAL {flush} = 1, and in the server's configuration",
        )
    if found.get("log_bin") == "ON" and found.get("sync_binlog") != "1":
        report.warn(
            f"sync_binlog is {found.get('sync_binlog')}: after a failover, the replica may lack "
            "acknowledged commits",
            "SET GLOBAL sync_binlog = 1, and in the server's configuration",
        )
    if found.get("innodb_doublewrite") == "OFF":
        report.warn(
            "innodb_doublewrite is OFF: a power failure may leave half-written pages",
            "innodb_doublewrite = ON, unless the file system writes pages atomically",
        )


def limits(context: CheckContext, report: CheckFindings) -> None:
    """The server accepts our largest statement, and all connections that a process may open."""
    connection, database = context.connection, context.database
    ours = database.connections_max
    if database.dialect == "sqlite":
        report.skip("SQLite has no such limits")
        return
    if database.dialect == "postgresql":
        theirs = int(connection.exec_driver_sql("SHOW max_connections").scalar_one())
        milliseconds = int(connection.scalar(_IDLE_LIMIT) or 0)
        longest = max((*context.handling.values(), *context.leases.values()), default=0.0)
        if 0 < milliseconds < longest * 1000:
            report.error(
                f"idle_in_transaction_session_timeout is {milliseconds} ms: it ends transactions "
                f"of handlers, which may take {longest:g} s",
                "raise it above the longest handler, or set it to 0 for this role",
            )
    else:
        found = _variables(connection, "max_connections", "max_allowed_packet")
        theirs = int(found["max_connections"])
        if int(found["max_allowed_packet"]) < _PACKET_SIZE_MIN:
            report.error(
                f"max_allowed_packet is {found['max_allowed_packet']}: a message of 4 MiB is "
                "refused in your transaction",
                f"SET GLOBAL max_allowed_packet = {16 * 1024 * 1024}, and in the configuration",
            )
    if ours > theirs:
        report.error(
            f"a process may open {ours} connections, the server allows {theirs} in total",
            "set database_connections (RELIABLE_MQ_DATABASE_CONNECTIONS), or a lower concurrency",
        )
    elif ours * 2 > theirs:
        report.warn(
            f"a process may open {ours} connections, the server allows {theirs}: only one "
            "process can run",
            "raise max_connections, or set database_connections",
        )
    if not report.findings:
        report.ok(f"{ours} connections of {theirs} for a process")


_IDLE_LIMIT = text(
    "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
)


def _variables(connection: Connection, *names: str, scope: str = "GLOBAL") -> dict[str, str]:
    """Return the values of MySQL variables in the order of the names, without unknown ones."""
    wanted = ", ".join(f"'{name}'" for name in names)
    shown = connection.exec_driver_sql(
        f"SHOW {scope} VARIABLES WHERE Variable_name IN ({wanted})"  # names are our own
    )
    found = {str(name).lower(): str(value) for name, value in shown}
    return {name: found[name] for name in names if name in found}
