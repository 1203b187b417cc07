"""All lists of the console, in the order of its menu. A new list is one line here."""

from reliable_mq.console.list_stubs import STUBS
from reliable_mq.console.lists import RowList

ROW_LISTS: tuple[RowList, ...] = (STUBS,)

BY_NAME: dict[str, RowList] = {each.name: each for each in ROW_LISTS}
