"""The notifiers that settings name."""

from pathlib import Path

from reliable_mq.errors import ConfigurationError
from reliable_mq.resend.alerts import LogNotifier, Notifier
from reliable_mq.settings import Settings


def notifiers_of(settings: Settings) -> list[Notifier]:
    """Return the log, and the mail and the webhook that the settings name.

    Raises:
        ConfigurationError: when a setting of one of them is wrong or missing.
    """
    made: list[Notifier] = [LogNotifier()]
    cooldown, timeout = settings.escalation_cooldown, settings.escalation_timeout
    if server := settings.escalation_mail_server.get_secret_value():
        # Imported late: who sends no mail needs no templates.
        from reliable_mq.resend.smtp_notifier import SmtpNotifier  # noqa: PLC0415

        folder = settings.escalation_templates
        made.append(
            SmtpNotifier(
                server,
                sender=settings.escalation_mail_from,
                recipients=settings.escalation_mail_to,
                cooldown=cooldown,
                timeout=timeout,
                templates=Path(folder) if folder else None,
            )
        )
    elif settings.escalation_mail_to or settings.escalation_mail_from:
        raise ConfigurationError("escalation_mail_to needs an escalation_mail_server, smtp://…")
    if settings.escalation_webhook:
        from reliable_mq.resend.http_notifier import WebhookNotifier  # noqa: PLC0415

        secret = settings.escalation_webhook_secret.get_secret_value()
        made.append(
            WebhookNotifier(
                settings.escalation_webhook, secret=secret, cooldown=cooldown, timeout=timeout
            )
        )
    return made
