"""When sends are refused because the log does not keep up."""

import pytest

from reliable_mq.broker_core.pressure import Pressure, PressureLimits
from reliable_mq.broker_core.requests.refusal import Refused

NOW_MS = 1_700_000_000_000
LIMITS = PressureLimits(wait_ms=200, stuck_ms=1_000, waiting_max=10_000)


def test_the_first_send_after_a_start_has_waited_no_longer_than_since_it_was_seen() -> None:
    pressure = Pressure(LIMITS)

    pressure.note_sends(1, 0, NOW_MS)

    assert pressure.wait_ms == 0
    pressure.check()


def test_a_log_that_does_not_move_while_a_send_waits_refuses_others_and_takes_them_again() -> None:
    pressure = Pressure(LIMITS)
    for elapsed in (0, 500, 1_000):
        pressure.note_sends(1, 0, NOW_MS + elapsed)

    with pytest.raises(Refused, match="broker busy"):
        pressure.check()
    pressure.note_sends(1, 100, NOW_MS + 1_020)
    pressure.check()
