"""The application whose console `bench.console_pages` measures: a shop with four topics."""

from typing import Any

from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")
GROUPS = {
    "orders": ["billing", "stock"],
    "payments": ["ledger"],
    "points": ["points"],
    "mails": ["mailer"],
}
for _topic, _groups in GROUPS.items():
    mq.topic(_topic, groups=_groups)
    for _group in _groups:

        @mq.consumer(_topic, group=_group)
        def _consume(_message: dict[str, Any]) -> None: ...
