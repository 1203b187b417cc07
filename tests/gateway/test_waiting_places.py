"""Places for calls that wait at brokers."""

import pytest

from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.waiting_places import WaitingPlaces

SHOP, OTHER, THIRD = ("shop", ""), ("other", ""), ("", "10.0.0.1")


def test_one_user_cannot_take_all_places() -> None:
    places = WaitingPlaces("pulls", 3, 2)
    with places.place(SHOP), places.place(SHOP):
        with pytest.raises(RpcRefused, match="2 pulls wait already, 2 of them yours") as caught:
            places.place(SHOP).__enter__()
        assert caught.value.code is Code.TOO_MANY_REQUESTS
        with places.place(OTHER):
            places.invariants()
            with pytest.raises(RpcRefused, match="3 pulls wait already, 0 of them yours"):
                places.place(THIRD).__enter__()
    places.invariants()
    with places.place(SHOP):
        pass


def test_a_place_is_given_back_whatever_happens() -> None:
    places = WaitingPlaces("pulls", 1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), places.place(SHOP):
            raise ZeroDivisionError
    places.invariants()
