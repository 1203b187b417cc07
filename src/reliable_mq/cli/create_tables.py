"""`reliable-mq create-tables`: creates our tables in an application's database."""

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_stub_table import DEFAULT_PREFIX


def command(
    application: options.Named = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    as_json: printing.AsJson = False,
) -> None:
    """Create the missing tables in an application's databases."""
    db = options.database_of(application, db, "MODULE:OBJECT")
    if db:
        database = Database(db, prefix=prefix, connections=1)
        names = database.create_tables()
        database.close()
    else:
        mq = options.loaded(application)
        names = mq.create_tables()
        mq.close()
    if as_json:
        say_json({"tables": names})
    else:
        say(f"tables: {', '.join(names)}")
