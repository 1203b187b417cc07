"""How long things are kept and how long they may come again, and whether that fits (P7). Pure.

A consumed message is known by its consume log. As long as a copy of it can still arrive, its log
has to be there; so what is forgotten has to be older than every window in which one could.
"""

import msgspec

from reliable_mq.errors import ConfigurationError

_SEND_STEPS = 3  # name servers are asked, a connection is made, an answer is awaited
HALF_SECONDS = 7_200.0
"""How long brokers may ask for a half message. Apache's default is 15 times in 15 minutes; the rest
is for a broker that was away meanwhile."""


class RetentionWindows(msgspec.Struct, frozen=True, kw_only=True):
    """All windows of an application, seconds. The names are those of the settings.

    Attributes:
        stub_retention_seconds: how long a settled stub is kept.
        log_retention_seconds: how long the log of a consumed message is kept.
        replay_window_seconds: how far back a broker may deliver again.
        resend_horizon: how long sends of a stub may go on.
        retry_horizon: how long attempts at a message may go on, of the most patient consumer.
    """

    stub_retention_seconds: float
    log_retention_seconds: float
    replay_window_seconds: float
    resend_horizon: float
    retry_horizon: float


def contradictions(windows: RetentionWindows, *, is_kept: bool = False) -> list[str]:
    """Return a sentence for each pair of windows that contradict each other.

    Args:
        windows: the windows.
        is_kept: nothing is ever removed, so it does not matter when it would be.
    """
    return [] if is_kept else _of_retention(windows)


def send_seconds(request_timeout: float, retries: int) -> float:
    """Return how long one send may take, seconds.

    Args:
        request_timeout: seconds that one request waits, of the client's settings.
        retries: how often a send that failed is tried again, of the same.
    """
    return request_timeout * max(_SEND_STEPS, retries + 1)


def lease_doubt(resend_lease: float, send: float) -> str | None:
    """Return what is to be said of a lease that is shorter than one send may take, None: nothing.

    It breaks no promise: what two schedulers send at the same time is a duplicate.

    Args:
        resend_lease: seconds.
        send: what `send_seconds` says.
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
    retries = f"the {windows.retry_horizon:g} s of retry_waits_seconds and max_attempts"
    halves = f"{HALF_SECONDS:g} s of questions for halves"
    # (is it too short, which window and for which other, why)
    too_short = (
        (
            logged < kept,
            f"log_retention_seconds={logged:g} is shorter than stub_retention_seconds={kept:g}",
            "a stub that can be sent again needs the logs of those who have consumed it",
        ),
        (
            logged < replay,
            f"log_retention_seconds={logged:g} is shorter than replay_window_seconds={replay:g}",
            "what a broker can still deliver again would have its effect twice",
        ),
        (
            logged < windows.resend_horizon,
            f"log_retention_seconds={logged:g} is shorter than {resends}",
            "a group that has consumed a message would get it again, and not know it",
        ),
        (
            logged < windows.retry_horizon,
            f"log_retention_seconds={logged:g} is shorter than {retries}",
            "a message that is still tried would have its effect twice",
        ),
        (
            kept < HALF_SECONDS,
            f"stub_retention_seconds={kept:g} is shorter than {halves}",
            "a broker may ask for a half message so late, and would find that its stub is gone",
        ),
    )
    return [f"{which}: {why}" for is_short, which, why in too_short if is_short]


def check_windows(windows: RetentionWindows, *, is_kept: bool = False) -> None:
    """Refuse windows that contradict each other; arguments as of `contradictions`.

    Raises:
        ConfigurationError: names them.
    """
    if found := contradictions(windows, is_kept=is_kept):
        raise ConfigurationError("; ".join(found))


def horizon(waits: tuple[float, ...], times: int) -> float:
    """Return how long a ladder of waits lasts that is climbed so many times."""
    most = waits[-1] * max(times - len(waits), 0)
    return sum(waits[:times]) + most
