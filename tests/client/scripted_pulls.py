"""Queues that are read for a caller, over a scripted world."""

from tests.client.script import World, fails, group_of
from tests.client.scripted_consumer import ScriptedClient

from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.connecting.namespace import NO_NAMESPACE
from reliable_mq.client.consuming.asyncio_pulled_queues import Callback, PulledQueues
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import RequestTimeout
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode

QUEUE = MessageQueue("t", "a", 0)
QUICK = ClientSettings(rebalance_retry_seconds=0.001, close_timeout_seconds=0.05)
PATIENT = ClientSettings(rebalance_retry_seconds=0.001)
NOTHING_NEW = fails(RequestTimeout("nothing new"))
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


class PullingClient(ScriptedClient):
    """Runs flows over a scripted world, for a pull consumer."""

    namespace = NO_NAMESPACE

    def __init__(self, world: World, settings: ClientSettings = QUICK, *, queues: int = 1) -> None:
        super().__init__(world)
        self.settings = settings
        self.queues = queues

    def polled_group(self, subscription: Subscription, *, is_member: bool) -> ConsumerGroup:
        return group_of(
            self.world,
            subscription,
            queues={"a": self.queues},
            settings=self.settings,
            polled=True,
            is_member=is_member,
        )

    def join(self, member: Member) -> None:
        return None


def pulled_from(
    world: World,
    *,
    on_assigned: Callback | None = None,
    on_revoked: Callback | None = None,
    settings: ClientSettings = QUICK,
    queues: int = 1,
) -> PulledQueues:
    wanted = Subscription(group="g", topics={"t": "*"}, ordered=False)
    group = group_of(world, wanted, queues={"a": queues}, settings=settings, polled=True)
    return PulledQueues(
        ScriptedClient(world),
        group,
        auto_commit=True,
        on_assigned=on_assigned,
        on_revoked=on_revoked,
    )


def committed(world: World) -> list[int]:
    return [int(call.command.ext_fields["commitOffset"]) for call in world.calls_of(COMMIT)]
