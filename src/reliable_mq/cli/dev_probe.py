"""What an application needs, for `reliable-mq dev`; in a process of its own, as code changes.

`python -m reliable_mq.cli.dev_probe MODULE:OBJECT` prints one line of JSON.
"""

import sys

import msgspec

from reliable_mq.cli.database_options import loaded
from reliable_mq.cli.entry import INTERRUPTED
from reliable_mq.cli.main import run_plainly
from reliable_mq.cli.saying import say_raw
from reliable_mq.decodable import decodable
from reliable_mq.settings import EMBEDDED

PLACEHOLDERS = {
    "RELIABLE_MQ_BROKER": "127.0.0.1:2",
    "RELIABLE_MQ_DATABASE": "postgresql+psycopg://postgres@127.0.0.1:2/dev",
    "RELIABLE_MQ_REDIS": "redis://127.0.0.1:2/0",
}
"""Given while the application is imported. Where it still has one, it has no address of its own."""
MARK = "reliable-mq-dev "


@decodable
class DevNeeds(msgspec.Struct, frozen=True):
    """The servers that an application has no address of, and whether it has consumers."""

    broker: bool
    database: bool
    redis: bool
    is_embedded: bool
    has_consumers: bool


def needs_of(application: str) -> DevNeeds:
    """Import an application and return what it needs."""
    mq = loaded(application)
    settings = mq.settings
    return DevNeeds(
        broker=settings.broker == PLACEHOLDERS["RELIABLE_MQ_BROKER"],
        database=settings.database == PLACEHOLDERS["RELIABLE_MQ_DATABASE"],
        redis=settings.redis == PLACEHOLDERS["RELIABLE_MQ_REDIS"],
        is_embedded=settings.broker.startswith(EMBEDDED),
        has_consumers=bool(mq.consumer_groups),
    )


def _print_needs() -> None:
    say_raw(MARK + msgspec.json.encode(needs_of(sys.argv[1])).decode())


if __name__ == "__main__":
    try:
        run_plainly(_print_needs)
    except KeyboardInterrupt:  # of the terminal, which ends `dev`, too
        sys.exit(INTERRUPTED)
