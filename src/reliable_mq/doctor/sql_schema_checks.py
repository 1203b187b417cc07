"""Checks of the schema: do all tables, columns, keys and indexes exist, and are texts compared
exactly?
"""

from sqlalchemy import text

from reliable_mq.database.sql_schema import REVISION, differences, is_older, revision_of
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings

_MIGRATE = "run reliable-mq migrate --app MODULE:OBJECT"
_CREATE = "run reliable-mq create-tables --app MODULE:OBJECT"
_MIGRATE_OR_CREATE = f"{_MIGRATE} (without Alembic: reliable-mq create-tables)"
_EXACT = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")


def tables(context: CheckContext, report: CheckFindings) -> None:
    """Every table and column of this release exists, and the revision is that of this release.

    Of tables of an older release, only that is told: a migration brings all that they lack, and
    `create-tables` refuses them.
    """
    connection, database = context.connection, context.database
    revision = revision_of(connection, database.prefix)
    if is_older(revision):
        report.error(
            f"the tables {database.prefix}… are of revision {revision}, this release needs"
            f" {REVISION}",
            _MIGRATE,
        )
        return
    for each in differences(connection, database.metadata):
        if each.kind == "table":
            report.error(str(each), _CREATE if revision else _MIGRATE_OR_CREATE)
        elif each.kind == "column":
            report.error(str(each), "restore the column" if revision else _MIGRATE)
    if revision is None:
        report.warn("the database notes no revision of its tables", _MIGRATE_OR_CREATE)
    elif not report.findings:
        newer = f"; this release knows {REVISION}" if revision > REVISION else ""
        count = len(database.metadata.tables) + 1  # that of the revision
        report.ok(f"{count} tables at revision {revision}{newer}")


def indexes(context: CheckContext, report: CheckFindings) -> None:
    """Every key and index exists and is valid. Without its keys a table guarantees nothing."""
    connection, database = context.connection, context.database
    create = _MIGRATE if is_older(revision_of(connection, database.prefix)) else _CREATE
    for each in differences(connection, database.metadata):
        if each.kind == "key":
            report.error(f"{each}: a message could have two rows", "restore the table's key")
        elif each.kind == "index":
            report.error(f"{each}: queries read the whole table", create)
    if database.dialect == "postgresql":
        for name in connection.scalars(_INVALID, {"names": sorted(database.metadata.tables)}):
            report.error(
                f"index {name} is invalid, and unused", f"REINDEX INDEX CONCURRENTLY {name}"
            )
    if not report.findings:
        report.ok("all keys and indexes are there")


_INVALID = text(
    "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "
    "JOIN pg_class t ON t.oid = x.indrelid "
    "WHERE t.relname = ANY(:names) AND pg_table_is_visible(t.oid) AND NOT x.indisvalid"
)


def storage(context: CheckContext, report: CheckFindings) -> None:
    """MySQL only: the tables have transactions and compare texts exactly."""
    connection, database = context.connection, context.database
    if database.dialect != "mysql":
        report.skip("MySQL and MariaDB only")
        return
    ours = database.metadata.tables
    for name, engine in connection.execute(_ENGINES):
        if name in ours and str(engine).lower() != "innodb":
            report.error(
                f"table {name} has the engine {engine}, which has no transactions",
                f"ALTER TABLE {name} ENGINE = InnoDB",
            )
    for name, column, collation in connection.execute(_COLLATIONS):
        if name in ours and collation not in _EXACT:
            report.error(
                f"{name}.{column} has the collation {collation}: different ids may count as equal",
                f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4 COLLATE {_EXACT[0]} "
                f"(at MySQL {_EXACT[1]})",
            )
    if not report.findings:
        report.ok("InnoDB, and texts are compared exactly")


_ENGINES = text(
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = database()"
)
_COLLATIONS = text(
    "SELECT table_name, column_name, collation_name FROM information_schema.columns "
    "WHERE table_schema = database() AND collation_name IS NOT NULL"
)
