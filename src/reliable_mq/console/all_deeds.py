"""All deeds of the console. A new deed is one line here."""

from reliable_mq.console.deeds import Deed
from reliable_mq.console.deeds_stubs import RETRY_STUBS, VOID_STUBS

DEEDS: tuple[Deed, ...] = (RETRY_STUBS, VOID_STUBS)

DEED_BY_NAME: dict[str, Deed] = {each.name: each for each in DEEDS}


def deeds_of(list_name: str) -> list[Deed]:
    """Return the deeds that take rows of a list."""
    return [each for each in DEEDS if each.of_list is not None and each.of_list.name == list_name]
