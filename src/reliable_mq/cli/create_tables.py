"""`reliable-mq create-tables`: creates our tables in an application's database."""

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.database.sql_database import Database


@takes_options_of(options.named_place_of, "place")
def command(
    *,
    place: options.Place,
    wait: options.Wait = False,
    as_json: printing.AsJson = False,
) -> None:
    """Create the missing tables in an application's databases, and print their names."""
    if wait:
        options.wait_for_databases(place)
    if place.db:
        database = Database(place.db, prefix=place.table_prefix, connections=1)
        names = database.create_tables()
        database.close()
    else:
        mq = options.loaded(place.application)
        names = mq.create_tables()
        mq.close()
    if as_json:
        say_json({"created": names})
    else:
        say(f"created: {', '.join(names)}" if names else "all tables are there")
