"""All deeds of the console, and the templates of lists that have forms. A new deed is one line."""

from reliable_mq.console.deeds import Deed
from reliable_mq.console.deeds_cluster import (
    PAUSE_GROUP,
    PAUSE_TOPIC,
    RESET_OFFSETS,
    RESUME_GROUP,
    RESUME_TOPIC,
)
from reliable_mq.console.deeds_copies import COPY_DEAD_LETTER
from reliable_mq.console.deeds_dead_letters import RETRY_DEAD_LETTERS, VOID_DEAD_LETTERS
from reliable_mq.console.deeds_deletes import DELETE_GROUP, DELETE_TOPIC
from reliable_mq.console.deeds_findings import REPAIR_FINDINGS, VOID_FINDINGS
from reliable_mq.console.deeds_increment import START_INCREMENT
from reliable_mq.console.deeds_skips import SKIP_ATTEMPTS
from reliable_mq.console.deeds_stubs import RETRY_STUBS, VOID_STUBS

DEEDS: tuple[Deed, ...] = (
    *(RETRY_STUBS, VOID_STUBS, SKIP_ATTEMPTS),
    *(RETRY_DEAD_LETTERS, VOID_DEAD_LETTERS, COPY_DEAD_LETTER),
    *(REPAIR_FINDINGS, VOID_FINDINGS, START_INCREMENT),
    *(PAUSE_TOPIC, RESUME_TOPIC, PAUSE_GROUP, RESUME_GROUP, RESET_OFFSETS),
    *(DELETE_TOPIC, DELETE_GROUP),
)

DEED_BY_NAME: dict[str, Deed] = {each.name: each for each in DEEDS}

_TEMPLATES = {
    "runs": "list_runs.html",
    "topics": "list_topics.html",
    "queues": "list_queues.html",
    "dead-letters": "list_dead_letters.html",
}


def deeds_of(list_name: str) -> list[Deed]:
    """Return the deeds that take rows of a list."""
    return [each for each in DEEDS if each.of_list is not None and each.of_list.name == list_name]


def template_of(list_name: str) -> str:
    """Return the template of a list's page."""
    if list_name in _TEMPLATES:
        return _TEMPLATES[list_name]
    return "list_doing.html" if deeds_of(list_name) else "list.html"
