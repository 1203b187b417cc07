"""All lists of the console, in the order of its menu. A new list is one line here."""

from reliable_mq.console.list_cluster import BROKERS, GROUPS, PERIODIC, QUEUES, TOPICS
from reliable_mq.console.list_dead_letters import DEAD_LETTERS
from reliable_mq.console.list_ledgers import AUDIT, ESCALATIONS, LOGS
from reliable_mq.console.list_runs import FINDINGS, RUNS, VERDICTS
from reliable_mq.console.list_stubs import STUBS
from reliable_mq.console.lists import RowList

ROW_LISTS: tuple[RowList, ...] = (
    *(STUBS, DEAD_LETTERS, ESCALATIONS, LOGS),
    *(RUNS, VERDICTS, FINDINGS),
    *(TOPICS, GROUPS, QUEUES, BROKERS, PERIODIC),
    AUDIT,
)

BY_NAME: dict[str, RowList] = {each.name: each for each in ROW_LISTS}
