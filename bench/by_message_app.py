"""The application of `bench.by_message`: `@mq.consumer`, by the queue or by the message.

`reliable-mq run bench.by_message_app:mq` runs the consumer that `BY` names; `WORK` says what its
handler does beside one row: `quick` nothing, `mixed` waits 300 ms for each twentieth message,
`steady` waits 20 ms.
"""

import os
import time
from typing import Any, Literal

from sqlalchemy import BigInteger, Column, Float, MetaData, Table, insert
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ

mq = ReliableMQ("by-message")
metadata = MetaData()
effects = Table(
    "by_message_effect",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("sent", Float, nullable=False),
    Column("done", Float, nullable=False),
)
INSERT = insert(effects)


def handle(sent: dict[str, Any], session: Session) -> None:
    """Write one row, after some work."""
    work = os.environ["WORK"]
    if work == "steady":
        time.sleep(0.02)
    elif work == "mixed" and sent["number"] % 20 == 0:
        time.sleep(0.3)
    session.execute(INSERT, {"number": sent["number"], "sent": sent["at"], "done": time.time()})


BY: dict[str, Literal["queue", "message"]] = {"queue": "queue", "message": "message"}
if by := BY.get(os.environ.get("BY", "")):
    named = f"{os.environ['WORK']}-{by}"
    mq.consumer(named, group=named, ordered=False, by=by)(handle)
