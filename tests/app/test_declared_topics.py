"""What an application declares about its topics."""

from reliable_mq import ReliableMQ


def test_a_topic_is_declared_by_its_name_and_not_by_its_consumer_alone() -> None:
    """A declared topic that nobody has sent to is expected, another one may be misspelt."""
    mq = ReliableMQ("shop")

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    @mq.consumer("ordres", group="audit")
    def audit(order: dict[str, int]) -> None: ...

    mq.topic("orders")

    consumers = mq._declared.consumers
    assert [each.subscription().has_declared_topics for each in consumers] == [True, False]
