"""Checks of clocks, leases and windows: do the times fit each other? Values only."""

from datetime import UTC, datetime

from reliable_mq.client.configured import configured
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.retention.windows import send_seconds

SKEW_SECONDS_MAX = 0.5
"""As `sql_clock.TOLERATED_SECONDS`: a smaller difference is ignored everywhere."""
FAR_SECONDS = 60.0
"""From this difference on, windows and lists by time are visibly wrong."""
_SYNCHRONIZE = "let NTP (chrony, systemd-timesyncd) set that machine's clock"
_IF_WRONG = "if the clock is wrong, set it; if the machine was off, there is nothing to do"
_RENEWALS = 3
"""A lease is renewed after a third of its duration."""


def clocks(context: CheckContext, report: CheckFindings) -> None:
    """The clocks of all machines agree within half a second.

    The package dates rows by the database's clock, so a wrong clock of a machine loses no lease.
    But broker timestamps and log files use the clock of their own machine.
    """
    ahead, error = -context.clock_ahead, context.clock_error  # this machine's, by the database's
    _compare(report, "this machine", ahead, error)
    for row in context.processes:
        _compare(
            report, f"process {row.pid} on {row.host} ({row.application})", row.clock_ahead, 0.0
        )
    for redis in context.redis:
        if not redis.failure:
            who = f"Redis {redis.name}".rstrip()
            _compare(report, who, redis.clock_ahead + ahead, redis.answer_seconds + error)
    for broker in context.cluster.brokers if context.cluster is not None else ():
        if broker.clock_ahead is not None:
            who, its_error = f"broker {broker.name}", broker.clock_error
            _compare(report, who, broker.clock_ahead + ahead, its_error + error)
    _jumps(context, report)
    if not report.findings:
        report.ok("all clocks agree with the database's")


def _jumps(context: CheckContext, report: CheckFindings) -> None:
    """Report rows that are kept longer because a clock jumped: the time may not have passed."""
    known, longest = context.watched, context.settings.log_retention_seconds
    if known is not None and (held := known.held(longest)):
        until = datetime.fromtimestamp(known.held_until(longest), UTC)
        report.warn(
            f"the database's clock jumped by {held:.0f} s that were not watched: old rows are "
            f"kept so much longer, until {until:%Y-%m-%d %H:%M} UTC",
            _IF_WRONG,
        )
    for broker in context.cluster.brokers if context.cluster is not None else ():
        seconds = broker.runtime.get("filesHeldSeconds", "")
        if seconds.isdecimal() and int(seconds):
            report.warn(
                f"the clock of broker {broker.name} jumped by {seconds} s that were not watched: "
                "old files of its log are kept so much longer",
                _IF_WRONG,
            )


def _compare(report: CheckFindings, whose: str, ahead: float, error: float) -> None:
    if abs(ahead) <= SKEW_SECONDS_MAX + error:
        return
    side = "ahead of" if ahead > 0 else "behind"
    say = report.error if abs(ahead) > FAR_SECONDS else report.warn
    say(f"the clock of {whose} is {abs(ahead):.1f} s {side} the database's", _SYNCHRONIZE)


def leases(context: CheckContext, report: CheckFindings) -> None:
    """A lease lasts longer than its work. If it expires early, two processes do the same work."""
    settings, client = context.settings, configured(context.settings)
    send = send_seconds(client.request_timeout_seconds, client.retries)
    if settings.resend_lease_seconds <= send:
        report.error(
            f"resend_lease_seconds is {settings.resend_lease_seconds:g} s, a send with its retries "
            f"may take {send:g} s: two schedulers would send the same stubs",
            f"set resend_lease_seconds above {send:g}",
        )
    patience = settings.redis_timeout_seconds
    for group, lease in sorted(context.leases.items()):
        if settings.redis and lease / _RENEWALS <= patience:
            report.error(
                f"the lease of group {group} is {lease:g} s and renewed every "
                f"{lease / _RENEWALS:g} s, but Redis may take {patience:g} s to "
                "answer: a running handler may lose it",
                f"set it above {patience * _RENEWALS:g}, or redis_timeout_seconds lower",
            )
        longest = context.handling.get(group, 0.0)
        if longest > lease:
            report.error(
                f"handlers of group {group} took {longest:.1f} s, their lease is {lease:g} s: if "
                "its renewal stops, another process handles the message at the same time",
                f"give the consumer a lease above {longest:.0f}, or make its handler shorter",
            )
    if not report.findings:
        report.ok("every lease lasts longer than its work")


def windows(context: CheckContext, report: CheckFindings) -> None:
    """A consumed message is remembered as long as it may arrive again (P7)."""
    settings = context.settings
    notified, waits = settings.resend_notify_after_seconds, settings.resend_waits_seconds
    for broker in context.cluster.brokers if context.cluster is not None else ():
        hours = broker.config.get("fileReservedTime", "")
        if hours.isdecimal() and int(hours) * 3600.0 < notified:
            report.error(
                f"broker {broker.name} removes files after {hours} h, but a group that does not "
                f"consume is escalated after {notified / 3600:g} h: "
                "messages may be gone before anybody knows",
                "raise fileReservedTime, or lower resend_notify_after_seconds",
            )
    if settings.redis and settings.duplicate_window_seconds < max(waits):
        report.warn(
            f"Redis forgets consumed messages after {settings.duplicate_window_seconds:g} s, and "
            f"stubs are sent again after up to {max(waits):g} s: the database will have to "
            "suppress those duplicates",
            "raise duplicate_window_seconds",
        )
    if not report.findings:
        report.ok("the windows fit each other")
