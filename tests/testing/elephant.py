"""A SQLAlchemy dialect as third parties make them: PostgreSQL's, under a name of its own."""

from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg


class Elephant(PGDialect_psycopg):
    """For threads."""

    name = "elephant"
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, url: Any) -> Any:
        return AsyncElephant


class AsyncElephant(PGDialectAsync_psycopg):
    """For asyncio."""

    name = "elephant"
    supports_statement_cache = True
