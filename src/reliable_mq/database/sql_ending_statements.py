"""Whether a statement ends its transaction, by its text. Pure: no database is asked.

A text does not say what a statement does: a procedure may commit. So there are three answers: it
leaves the transaction open (`is_plain`), it ends it, or nobody knows.
"""

import re

_BEFORE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*+"  # possessive quantifier: many comments are read once
_END = rf"{_BEFORE}(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b))\b"
_ENDS = re.compile(_END, re.IGNORECASE | re.DOTALL)
# psycopg sends several statements at once if they have no parameters.
_ENDS_LATER = re.compile(f";{_END}", re.IGNORECASE | re.DOTALL)
_NO_STATEMENT = re.compile(
    r"'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|--[^\n]*|/\*.*?\*/", re.IGNORECASE | re.DOTALL
)
# MySQL commits before these statements ("Statements That Cause an Implicit Commit").
_END_ON_MYSQL = (
    rf"{_BEFORE}(?:COMMIT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b)|BEGIN|START|STOP|XA"
    r"|(?:CREATE|DROP)(?!\s+TEMPORARY\b)|ALTER|RENAME|TRUNCATE|LOCK|UNLOCK"
    r"|GRANT|REVOKE|ANALYZE|OPTIMIZE|REPAIR|CHECK|CACHE|FLUSH|RESET|CHANGE|INSTALL|UNINSTALL"
    r"|SET\s+(?:(?:@@)?(?:SESSION|LOCAL)?[\s.]*AUTOCOMMIT|PASSWORD))\b"
)
_ENDS_ON_MYSQL = re.compile(_END_ON_MYSQL, re.IGNORECASE | re.DOTALL)
# aiomysql sends several statements at once; PyMySQL does if its flags allow it.
_ENDS_LATER_ON_MYSQL = re.compile(f";{_END_ON_MYSQL}", re.IGNORECASE | re.DOTALL)
_NO_STATEMENT_ON_MYSQL = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`[^`]*`|\#[^\n]*|--\s[^\n]*|/\*(?!!).*?\*/""",
    re.DOTALL,
)
# A single statement with this beginning ends no transaction: the functions it calls must not.
_PLAIN = re.compile(
    r"[\s(]*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|REPLACE|WITH|VALUES|SAVEPOINT|RELEASE"
    r"|ROLLBACK\s+(?:\w+\s+)?TO)\b",
    re.IGNORECASE,
)
# PostgreSQL refuses a COMMIT in every routine of a transaction, and its DDL commits nothing.
_PLAIN_ON_POSTGRESQL = re.compile(
    r"[\s(]*(?!(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:\w+\s+)?TO\b)|PREPARE)\b)[a-z]", re.IGNORECASE
)
_COMMENT = re.compile(r"[\s(]*(/\*|--)")
_EXECUTED_COMMENTS = ("/*!", "/*M!")  # MySQL and MariaDB execute these


def is_plain(statement: str, dialect: str) -> bool:
    """Return whether a statement leaves its transaction open, whatever the database contains.

    Args:
        statement: the text that the driver gets.
        dialect: SQLAlchemy's name of the database's dialect.
    """
    plain = _PLAIN_ON_POSTGRESQL if dialect == "postgresql" else _PLAIN
    return bool(
        (plain.match(statement) or plain.match(statement, _after_comments(statement)))
        and ";" not in statement
        and ("/*" not in statement or not any(each in statement for each in _EXECUTED_COMMENTS))
    )


def _after_comments(statement: str) -> int:
    """Return where the first word after leading comments may begin. Reads each character once.

    A comment that databases end at different places is not skipped: PostgreSQL nests comments, and
    ends `--` comments at a carriage return; the others do neither.
    """
    place = 0
    while comment := _COMMENT.match(statement, place):
        end = "*/" if comment[1] == "/*" else "\n"
        stop = statement.find(end, comment.end())
        said = statement[comment.end() : stop].removesuffix("\r")
        if stop < 0 or "/*" in said or (end == "\n" and "\r" in said):
            break
        place = stop + len(end)
    return place


def ends(statement: str) -> bool:
    """Return whether a statement, or a later one of several, ends the transaction."""
    if _ENDS.match(statement):
        return True
    several = ";" in statement and _NO_STATEMENT.sub(" ", statement)
    return bool(several and _ENDS_LATER.search(several))


def ends_on_mysql(statement: str) -> bool:
    """Return the same for MySQL, which commits before many statements by itself."""
    if _ENDS_ON_MYSQL.match(statement):
        return True
    several = ";" in statement and _NO_STATEMENT_ON_MYSQL.sub(" ", statement)
    return bool(several and _ENDS_LATER_ON_MYSQL.search(several))
