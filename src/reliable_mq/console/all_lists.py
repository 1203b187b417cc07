"""All lists of the console, in the order of its menu. A new list is one line here.

First what waits for a person, then what is behind, then what was found, then who did what.
"""

from reliable_mq.console.file_runs import RUN_FILE_FINDINGS, RUN_FILES
from reliable_mq.console.list_cluster import BROKERS, GROUPS, PERIODIC, QUEUES, TOPICS
from reliable_mq.console.list_dead_letters import DEAD_LETTERS
from reliable_mq.console.list_ledgers import AUDIT, ESCALATIONS, LOGS
from reliable_mq.console.list_runs import FINDINGS, RUNS
from reliable_mq.console.list_stubs import STUBS
from reliable_mq.console.list_verdicts import VERDICT_DAYS, VERDICTS
from reliable_mq.console.list_waiting import HALVES, TIMERS
from reliable_mq.console.list_workers import WORKERS
from reliable_mq.console.lists import RowList

ROW_LISTS: tuple[RowList, ...] = (
    *(DEAD_LETTERS, STUBS, ESCALATIONS, LOGS),
    *(GROUPS, QUEUES, TOPICS, BROKERS, WORKERS),
    *(HALVES, TIMERS, PERIODIC),
    *(RUNS, FINDINGS, VERDICTS, VERDICT_DAYS, RUN_FILES, RUN_FILE_FINDINGS),
    AUDIT,
)

BY_NAME: dict[str, RowList] = {each.name: each for each in ROW_LISTS}
