"""Clocks, leases and windows: do the times fit each other? Decides on values only."""

from datetime import UTC, datetime

from reliable_mq.client.configured import configured
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.retention.windows import send_seconds

SKEW_SECONDS_MAX = 0.5
"""As `sql_clock.TOLERATED_SECONDS`: what lies within is left alone by everybody."""
FAR_SECONDS = 60.0
"""From here on windows and lists by time are wrong for a person, too."""
_SYNCHRONIZE = "let NTP (chrony, systemd-timesyncd) set that machine's clock"
_IF_WRONG = "if the clock is wrong, set it; if the machine was off, there is nothing to do"
_RENEWALS = 3
"""A lease is renewed after a third of it."""


def clocks(context: CheckContext, told: CheckFindings) -> None:
    """All machines agree about the time, to half a second.

    Rows are dated and judged by the database's clock, so a machine that is wrong takes nothing from
    anybody; but what brokers say of messages, and every log, goes by the clock of who writes it.
    """
    ahead, error = -context.clock_ahead, context.clock_error  # this machine's, by the database's
    _compare(told, "this machine", ahead, error)
    for row in context.processes:
        _compare(told, f"process {row.pid} on {row.host} ({row.application})", row.clock_ahead, 0.0)
    for redis in context.redis:
        if not redis.failure:
            who = f"Redis {redis.name}".rstrip()
            _compare(told, who, redis.clock_ahead + ahead, redis.answer_seconds + error)
    for broker in context.cluster.brokers if context.cluster is not None else ():
        if broker.clock_ahead is not None:
            who, its_error = f"broker {broker.name}", broker.clock_error
            _compare(told, who, broker.clock_ahead + ahead, its_error + error)
    _jumps(context, told)
    if not told.findings:
        told.ok("all clocks agree with the database's")


def _jumps(context: CheckContext, told: CheckFindings) -> None:
    """Say what is kept longer because a clock jumped: nobody can know whether that time passed."""
    known, longest = context.watched, context.settings.log_retention_seconds
    if known is not None and (held := known.held(longest)):
        until = datetime.fromtimestamp(known.held_until(longest), UTC)
        told.warn(
            f"the database's clock went {held:.0f} s further than anybody watched: old rows are "
            f"kept so much longer, until {until:%Y-%m-%d %H:%M} UTC",
            _IF_WRONG,
        )
    for broker in context.cluster.brokers if context.cluster is not None else ():
        seconds = broker.runtime.get("filesHeldSeconds", "")
        if seconds.isdecimal() and int(seconds):
            told.warn(
                f"the clock of broker {broker.name} went {seconds} s further than anybody watched: "
                "old files of its log are kept so much longer",
                _IF_WRONG,
            )


def _compare(told: CheckFindings, whose: str, ahead: float, error: float) -> None:
    if abs(ahead) <= SKEW_SECONDS_MAX + error:
        return
    side = "ahead of" if ahead > 0 else "behind"
    say = told.error if abs(ahead) > FAR_SECONDS else told.warn
    say(f"the clock of {whose} is {abs(ahead):.1f} s {side} the database's", _SYNCHRONIZE)


def leases(context: CheckContext, told: CheckFindings) -> None:
    """A lease outlives what is done under it; one that passes early lets a second one in."""
    settings, client = context.settings, configured(context.settings)
    send = send_seconds(client.request_timeout_seconds, client.retries)
    if settings.resend_lease_seconds <= send:
        told.error(
            f"resend_lease_seconds is {settings.resend_lease_seconds:g} s, a send with its retries "
            f"may take {send:g} s: two schedulers would send the same stubs",
            f"set resend_lease_seconds above {send:g}",
        )
    patience = settings.redis_timeout_seconds
    for group, lease in sorted(context.leases.items()):
        if settings.redis and lease / _RENEWALS <= patience:
            told.error(
                f"the lease of group {group} is {lease:g} s and renewed every "
                f"{lease / _RENEWALS:g} s, but Redis may take {patience:g} s to "
                "answer: a running handler may lose it",
                f"set it above {patience * _RENEWALS:g}, or redis_timeout_seconds lower",
            )
        longest = context.handling.get(group, 0.0)
        if longest > lease:
            told.error(
                f"handlers of group {group} took {longest:.1f} s, their lease is {lease:g} s: it "
                "holds only while it is renewed, and a process that hangs is taken over",
                f"give the consumer a lease above {longest:.0f}, or make its handler shorter",
            )
    if not told.findings:
        told.ok("every lease outlives what is done under it")


def windows(context: CheckContext, told: CheckFindings) -> None:
    """Nothing is forgotten before the last moment at which it may come again (P7)."""
    settings = context.settings
    notified, waits = settings.resend_notify_after_seconds, settings.resend_waits_seconds
    for broker in context.cluster.brokers if context.cluster is not None else ():
        hours = broker.config.get("fileReservedTime", "")
        if hours.isdecimal() and int(hours) * 3600.0 < notified:
            told.error(
                f"broker {broker.name} removes files after {hours} h, but a person is told of a "
                f"group that does not consume after {notified / 3600:g} h: "
                "messages may be gone before anybody knows",
                "raise fileReservedTime, or lower resend_notify_after_seconds",
            )
    if settings.redis and settings.duplicate_window_seconds < max(waits):
        told.warn(
            f"Redis forgets after {settings.duplicate_window_seconds:g} s what was consumed, and "
            f"stubs are sent again after up to {max(waits):g} s: the database will have to "
            "suppress those duplicates",
            "raise duplicate_window_seconds",
        )
    if not told.findings:
        told.ok("the windows fit each other")
