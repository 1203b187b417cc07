"""Make the notifiers that the settings name.

All processes that share a database identify a notifier by its name, and one of them sends. So the
name contains the recipients: two applications with different recipients have two notifiers.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from reliable_mq.database.row_values import NOTIFIER_LENGTH_MAX
from reliable_mq.errors import ConfigurationError
from reliable_mq.escalate.alerts import LogNotifier, Notifier
from reliable_mq.escalate.mail_addresses import addresses_of
from reliable_mq.extras import extra_of
from reliable_mq.settings import Settings


def notifiers_of(settings: Settings, where: Callable[[], str]) -> list[Notifier]:
    """Return the log notifier, and the mail and webhook notifiers that the settings name.

    Args:
        settings: the application's settings.
        where: see `LogNotifier`.

    Raises:
        ConfigurationError: when a setting of one of them is wrong or missing.
    """
    made: list[Notifier] = [LogNotifier(where)]
    cooldown, timeout = settings.escalation_cooldown_seconds, settings.escalation_timeout_seconds
    if server := settings.escalation_mail_server.get_secret_value():
        # Imported late: an application without mail needs no template library.
        with extra_of("escalation_mail_server"):
            from reliable_mq.escalate.smtp_notifier import SmtpNotifier  # noqa: PLC0415

        folder = settings.escalation_templates
        made.append(
            SmtpNotifier(
                server,
                sender=settings.escalation_mail_from,
                recipients=settings.escalation_mail_to,
                cooldown=cooldown,
                timeout=timeout,
                templates=Path(folder) if folder else None,
                name=mail_name(settings.escalation_mail_to),
            )
        )
    elif settings.escalation_mail_to or settings.escalation_mail_from:
        raise ConfigurationError("escalation_mail_to needs an escalation_mail_server, smtp://…")
    if settings.escalation_webhook:
        from reliable_mq.escalate.http_notifier import WebhookNotifier  # noqa: PLC0415

        secret = settings.escalation_webhook_secret.get_secret_value()
        made.append(
            WebhookNotifier(
                settings.escalation_webhook,
                secret=secret,
                cooldown=cooldown,
                timeout=timeout,
                name=webhook_name(settings.escalation_webhook),
            )
        )
    return made


def mail_name(recipients: str) -> str:
    """Return the name of the mail notifier for these addresses. Their order does not matter."""
    try:
        addresses = {address.addr_spec.lower() for address in addresses_of(recipients)}
    except ValueError:  # the notifier will say what is wrong with it
        addresses = {recipients}
    name = f"mail to {', '.join(sorted(addresses))}"
    if len(name) <= NOTIFIER_LENGTH_MAX and name.isprintable():
        return name
    return f"mail to {len(addresses)} addresses, {_digest(name)}"


def webhook_name(url: str) -> str:
    """Return the name of the notifier for a webhook URL.

    The path may be a secret, so the name has only a hash of the URL, and the host.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # the notifier will say what is wrong with it
        host = ""
    return f"webhook to {host[:40]}, {_digest(url)}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
