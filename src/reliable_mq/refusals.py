"""The meaning of a broker's refusal of a message: whose fault, and whether another form helps."""

from reliable_mq.errors import NoTimers, RemoteError
from reliable_mq.wire.codes import ResponseCode


def is_illegal(error: object) -> bool:
    """Return whether a broker refused a message, or one of a batch, for its content."""
    return isinstance(error, RemoteError) and error.code == ResponseCode.MESSAGE_ILLEGAL


def is_without_timers(error: object) -> bool:
    """Return whether a message with a time was not stored because the broker has no timers.

    Such a broker is older than 5.0, or its timers are off.
    """
    if isinstance(error, NoTimers):
        return True
    return isinstance(error, RemoteError) and "timerWheelEnable is false" in error.remark


def is_too_far(error: object) -> bool:
    """Return whether a broker refused a message because its time is too far ahead."""
    return (
        isinstance(error, RemoteError)
        and error.code == ResponseCode.MESSAGE_ILLEGAL
        and "timer message illegal" in error.remark
    )
