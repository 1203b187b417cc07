"""The reference page of limits that an application meets, with the values of the code."""

from tests.documentation.declared import table

from reliable_mq import limits
from reliable_mq.database.row_values import TEXT_LENGTH_MAX
from reliable_mq.database.sql_key_tables import RESULT_SIZE_MAX
from reliable_mq.outbox.composing import _ADDED_SIZE_MAX

HEAD = """# Limits: message size, names, times

What is beyond a limit is refused where it is written, with the value and the limit. The transaction
can go on. Limits of the broker for its peers are in [Budgets](broker.md#budgets).

"""


def _size(count: int) -> str:
    if count % (1024 * 1024) == 0:
        return f"{count // (1024 * 1024)} MiB"
    return f"{count // 1024} KiB" if count % 1024 == 0 else f"{count:,} bytes"


def page() -> str:
    """Return the page."""
    characters, of = "characters", "of a-z A-Z 0-9 _ - % |"
    rows = [
        [
            "the body of a message: the size of its payload as bytes",
            _size(limits.MESSAGE_BODY_SIZE_MAX),
        ],
        ["all properties of a message together", _size(limits.PROPERTIES_SIZE_MAX)],
        [
            "of these, what is left free for brokers and the signature",
            _size(_ADDED_SIZE_MAX),
        ],
        ["the name of a topic", f"{limits.TOPIC_LENGTH_MAX} {characters} {of}"],
        [
            "the name of a consumer group or an application",
            f"{limits.GROUP_LENGTH_MAX} {characters} {of}",
        ],
        ["a tag, a key, an ordering key", f"{TEXT_LENGTH_MAX} {characters}"],
        ["a key", "no space in it: a space separates the keys of a message"],
        [
            "NUL and other control characters in a tag, a key, an ordering key, a correlation id",
            "refused",
        ],
        [
            "NUL in a payload or in the value of a property",
            "allowed, and the handler gets it. A text column of PostgreSQL of yours refuses it",
        ],
        [
            "a `float` in JSON",
            "64 bits, exactly as sent; NaN and infinity are refused. A `Decimal` is a text, whole",
        ],
        ["an `int` in JSON", "any size; other languages often read 53 bits only"],
        ["a message id that you choose", f"exactly 32 {characters} of a-z A-Z 0-9 _ -"],
        ["a time ahead that the broker keeps", f"{limits.TIMER_SECONDS_MAX // 86_400} days"],
        ["a time ahead that the database keeps", "a hundred years"],
        ["`Retry(after=…)`", f"{limits.DELAY_LEVEL_SECONDS[-1]:g} seconds"],
        ["attempts of a handler", f"`max_attempts`, or {limits.RETRY_ATTEMPTS_MAX}"],
        ["the stored result of `@mq.idempotent`", _size(RESULT_SIZE_MAX)],
        ["messages of one pull", f"{limits.PULL_COUNT_MAX}"],
        ["queues of a topic", f"{limits.QUEUES_MAX:,}"],
        ["tags of one subscription", f"{limits.TAGS_MAX:,}"],
    ]
    return HEAD + table(("what", "at most"), rows)
