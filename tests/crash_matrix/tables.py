"""Our tables, as an application would create them."""

from sqlalchemy import MetaData

from reliable_mq.database.sql_database import Database


def our_tables() -> MetaData:
    """Return the tables of this version."""
    return Database("sqlite:///never-opened.db", prefix="rmq_", connections=1).metadata
