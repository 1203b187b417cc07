"""Check that retention is longer than all windows in which a message can come again (P7). Pure.

A consumed message is recognised by its consume log. So the log must stay as long as a copy of the
message can still arrive, by a replay, a resend or a retry.
"""

import msgspec

from reliable_mq.errors import ConfigurationError

_SEND_STEPS = 3  # ask name servers, connect, wait for the answer
HALF_SECONDS = 7_200.0
"""Seconds during which brokers may send check-backs for a half message. Apache's default is 15
check-backs in 15 minutes; the rest is for a broker that was down meanwhile."""


class RetentionWindows(msgspec.Struct, frozen=True, kw_only=True):
    """All windows of an application, in seconds. The first three are settings of the same name.

    Attributes:
        stub_retention_seconds: how long a settled stub is kept.
        log_retention_seconds: how long the log of a consumed message is kept.
        replay_window_seconds: how far back a broker may deliver messages again.
        resend_horizon: how long a stub may be sent again.
        retry_horizon: how long a consumer may retry a message; the longest of all consumers.
    """

    stub_retention_seconds: float
    log_retention_seconds: float
    replay_window_seconds: float
    resend_horizon: float
    retry_horizon: float


def contradictions(windows: RetentionWindows, *, is_kept: bool = False) -> list[str]:
    """Return one sentence for each pair of windows that contradict each other.

    Args:
        windows: the windows.
        is_kept: nothing is ever removed, so there is no contradiction. Default False.
    """
    return [] if is_kept else _of_retention(windows)


def send_seconds(request_timeout: float, retries: int) -> float:
    """Return the seconds that one send may take.

    Args:
        request_timeout: seconds that one request waits: a setting of the client.
        retries: how often a failed send is retried: a setting of the client.
    """
    return request_timeout * max(_SEND_STEPS, retries + 1)


def lease_doubt(resend_lease: float, send: float) -> str | None:
    """Return a warning if the lease is not longer than one send may take, else None.

    A short lease breaks no guarantee: two schedulers that send the same message make a duplicate.

    Args:
        resend_lease: seconds that a claim of the scheduler lasts.
        send: seconds that one send may take, from `send_seconds`.
    """
    if resend_lease > send:
        return None
    return (
        f"resend_lease_seconds={resend_lease:g} is not longer than the {send:g} s that one send "
        "may take: where the broker is slow, two schedulers send the same message"
    )


def _of_retention(windows: RetentionWindows) -> list[str]:
    kept, logged = windows.stub_retention_seconds, windows.log_retention_seconds
    replay = windows.replay_window_seconds
    resends = f"the {windows.resend_horizon:g} s of resend_waits_seconds and resend_count_max"
    retries = (
        f"the {windows.retry_horizon:g} s of retry_waits_seconds and max_attempts (a consumer may "
        "have its own retry_waits)"
    )
    halves = f"the {HALF_SECONDS:g} s of check-backs"
    # (is it too short, which window and for which other, why)
    too_short = (
        (
            logged < kept,
            f"log_retention_seconds={logged:g} is shorter than stub_retention_seconds={kept:g}",
            "a stub that can be sent again needs the logs of the groups that have consumed it",
        ),
        (
            logged < replay,
            f"log_retention_seconds={logged:g} is shorter than replay_window_seconds={replay:g}",
            "a message that a broker can still deliver again would have its effect twice",
        ),
        (
            logged < windows.resend_horizon,
            f"log_retention_seconds={logged:g} is shorter than {resends}",
            "a group that has consumed a message would get it again and not recognise it",
        ),
        (
            logged < windows.retry_horizon,
            f"log_retention_seconds={logged:g} is shorter than {retries}",
            "a message that is still retried would have its effect twice",
        ),
        (
            kept < HALF_SECONDS,
            f"stub_retention_seconds={kept:g} is shorter than {halves}",
            "a broker may still send a check-back for a half message when its stub is removed",
        ),
    )
    return [f"{which}: {why}" for is_short, which, why in too_short if is_short]


def check_windows(windows: RetentionWindows, *, is_kept: bool = False) -> None:
    """Check that no windows contradict each other. The arguments are those of `contradictions`.

    Raises:
        ConfigurationError: when some do. The text names them.
    """
    if found := contradictions(windows, is_kept=is_kept):
        raise ConfigurationError("; ".join(found))


def horizon(waits: tuple[float, ...], times: int) -> float:
    """Return the sum of the first `times` waits of a ladder. Its last wait repeats."""
    most = waits[-1] * max(times - len(waits), 0)
    return sum(waits[:times]) + most
