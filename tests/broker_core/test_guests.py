"""Consumers behind an endpoint of the process: tools see them, and members do not."""

from reliable_mq.broker_core.clients import ConsumerData, RegisteredMember, SubscriptionData
from reliable_mq.broker_core.guests import Guests

HOST = "10.0.0.1:0"


def joined(
    guests: Guests, client_id: str, connection: int = 7, user: str = "", address: str = HOST
) -> None:
    subscription = SubscriptionData(topic=f"topic-of-{client_id}")
    beat = ConsumerData(group_name="g", subscription_data_set=[subscription])
    member = RegisteredMember(connection, client_id, "JAVA", 413, 0, address, user)
    guests.join("g", member, lambda: beat)


def ids(guests: Guests) -> list[str]:
    return sorted(each.client_id for each in guests.members_of("g"))


def test_a_guest_that_comes_again_is_one() -> None:
    guests = Guests()
    for _ in range(3):
        joined(guests, "a")
    assert ids(guests) == ["a"]
    guests.invariants()


def test_one_id_of_two_users_is_two_guests() -> None:
    guests = Guests()
    joined(guests, "a", user="shop")
    joined(guests, "a", user="other")
    guests.leave("g", "a", "shop", HOST)
    assert [each.user for each in guests.members_of("g")] == ["other"]


def test_one_id_at_two_addresses_is_two_guests() -> None:
    guests = Guests()
    joined(guests, "a")
    joined(guests, "a", address="10.0.0.2:0")
    guests.leave("g", "a", "", HOST)
    assert [each.address for each in guests.members_of("g")] == ["10.0.0.2:0"]


def test_the_newest_guest_says_what_its_group_subscribes_to() -> None:
    guests = Guests()
    joined(guests, "a")
    joined(guests, "b")
    joined(guests, "a")
    group = guests.group("g")
    assert group is not None
    assert set(group.subscriptions) == {"topic-of-a"}


def test_a_group_without_guests_is_forgotten() -> None:
    guests = Guests()
    joined(guests, "a")
    guests.leave("g", "a", "", HOST)
    guests.leave("g", "a", "", HOST)
    guests.leave("unknown", "a", "", HOST)
    assert guests.group("g") is None
    guests.invariants()


def test_the_guests_of_an_endpoint_leave_with_it() -> None:
    guests = Guests()
    joined(guests, "a", connection=7)
    joined(guests, "b", connection=8)
    guests.forget(7)
    assert ids(guests) == ["b"]
    guests.forget(8)
    guests.invariants()
    assert guests.group("g") is None
