"""Sends that come alone are stored, answered and shown without a turn, as a server does it.

`BrokerTurns.received_known` does the same on a real loop.
"""

from tests.simulation.asked import whole
from tests.simulation.model import Model
from tests.simulation.network import Link, Network
from tests.simulation.unjudged import Unjudged
from tests.simulation.world import World

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.commit_log import LogBatch, SegmentWrite
from reliable_mq.runtime.ha_master import HaMaster
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.wire.command import Command


def store_at_once(
    world: World,
    core: BrokerCore,
    writer: LogWriter,
    network: Network,
    model: Model | Unjudged,
    master: HaMaster | None,
    link: Link,
    command: Command,
) -> bool:
    """Store the only command of a read if it needs no turn; return False, and do nothing, if not.

    Half of the links have turns always.
    The model is told the same as of a turn: first the records, then what is stored, then replies.
    """
    if link.connection.id % 4 > 1:
        return False
    now_ms, replies = world.now_ms, list[Answer]()
    sends = core.place_alone(link.connection, command, now_ms)
    if sends is None or not writer.write_alone(sends):
        return False
    end = sends.dispatched.end
    world.note("stored at once", end)
    batch = LogBatch([SegmentWrite(sends.segment, sends.at, [sends.records])], end)
    model.turn(Turn(batch, [], {}), now_ms)
    core.stored_alone(sends, now_ms, now_ms, replies.extend)
    model.stored(end, now_ms)
    taken = whole(replies)
    model.turn(Turn(None, [*network.for_clients(taken)], {}), now_ms)
    network.answer(taken)
    if master is not None:
        master.stored()
    return True
