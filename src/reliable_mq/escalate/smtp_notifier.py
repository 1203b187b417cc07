"""The mail notifier: sends one mail for each digest to a mail server.

The texts are Jinja2 templates, `templates/escalation.*`, rendered in a sandbox. An application may
bring templates of the same names. The digest id is the Message-ID of the mail. If a digest is sent
again because its outcome was unknown, a mail program recognises the copy.
"""

import contextlib
import logging
import smtplib
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from jinja2 import (
    ChoiceLoader,
    FileSystemLoader,
    PackageLoader,
    StrictUndefined,
    select_autoescape,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment

from reliable_mq.errors import ConfigurationError
from reliable_mq.escalate.escalation import Digest, Escalation, EscalationCount, EscalationKind
from reliable_mq.escalate.mail_addresses import addresses_of
from reliable_mq.host_and_port import HostAndPort, place_of_authority
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

_PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
_SUBJECT, _TEXT, _HTML = "escalation.subject.txt", "escalation.txt", "escalation.html"
_SUBJECT_LENGTH_MAX = 200


def _parts_of(server: str) -> tuple[SplitResult, HostAndPort]:
    """Return the parts of a URL, its host and its port. Errors show no part of the URL.

    If a password is not percent-encoded, a part of it can look like the port. Connection errors
    would then show this part, too.
    """
    with contextlib.suppress(ValueError):
        parts = urlsplit(server)
        if "@" not in f"{parts.path}{parts.query}{parts.fragment}":
            return parts, place_of_authority(parts.netloc) or HostAndPort("", None)
    raise ConfigurationError(
        "the URL of the mail server is invalid: write it like smtps://user:password@host:465;"
        " in the login, write /?#[]@ as %2F %3F %23 %5B %5D %40"
    )


class SmtpNotifier:
    """Sends one mail for each digest.

    Args:
        server: `smtp://host:25`, `smtp+starttls://user:password@host:587` or
            `smtps://user:password@host:465`. User and password are percent-encoded.
        sender: the sender's address, with or without a name: `MQ <mq@shop.example>`.
        recipients: the recipients' addresses, separated by commas.
        cooldown: seconds from one mail to the next. Default 900.
        timeout: seconds to wait for the server's answer. Default 10.
        templates: a folder with `escalation.subject.txt`, `escalation.txt` or `escalation.html`.
            Each file replaces ours. The variable `digest` is a `Digest`.
        name: the notifier's name. Default "mail".
        tls: makes the TLS context, for a server with a certificate of your own. By default the
            context trusts the certificates that the system trusts.

    Raises:
        ConfigurationError: when the URL, an address or a template is invalid.
    """

    def __init__(
        self,
        server: str,
        *,
        sender: str,
        recipients: str,
        cooldown: float = 900.0,
        timeout: float = 10.0,
        templates: Path | None = None,
        name: str = "mail",
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self.name = name
        self.cooldown = cooldown
        self._timeout = timeout
        self._tls = tls
        parts, (self._host, port) = _parts_of(server)
        self._scheme = parts.scheme
        self._port = port or _PORTS.get(parts.scheme, 0)
        if self._scheme not in _PORTS or not self._host:
            raise ConfigurationError(
                f"the mail server is {' or '.join(f'{scheme}://…' for scheme in _PORTS)}, not "
                f"{self._scheme or 'something without a scheme'}://{self._host}"
            )
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._sender = _addresses(sender, "escalation_mail_from")[0]
        self._recipients = _addresses(recipients, "escalation_mail_to")
        if templates is not None and not templates.is_dir():
            raise ConfigurationError(f"escalation_templates: there is no folder {templates}")
        ours = PackageLoader("reliable_mq.escalate", "templates")
        self._templates = ImmutableSandboxedEnvironment(
            loader=ChoiceLoader([FileSystemLoader(templates), ours] if templates else [ours]),
            undefined=StrictUndefined,
            autoescape=select_autoescape(["html"]),
            keep_trailing_newline=True,
        )
        try:
            self._mail(_EXAMPLE)  # finds a wrong template at the start
        except Exception as error:  # a template can raise anything
            raise ConfigurationError(
                f"the templates of mails cannot be filled: {type(error).__name__}: {error}"
            ) from error

    def tell(self, digest: Digest) -> None:
        """Send the mail.

        Raises:
            smtplib.SMTPException, OSError: when the server accepted the mail for no recipient.
        """
        mail = self._mail(digest)
        server = self._connected()
        try:
            refused = server.send_message(mail)
            with contextlib.suppress(smtplib.SMTPException, OSError):  # the mail is accepted
                server.quit()
        finally:
            server.close()
        for address, (code, text) in refused.items():
            said = text.decode("utf-8", "replace")
            application_events.MAIL_REFUSED.log(
                log, notifier=self.name, address=address, code=code, answer=said
            )

    def _connected(self) -> smtplib.SMTP:
        if self._scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self._host, self._port, timeout=self._timeout, context=self._tls()
            )
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=self._timeout)
        try:
            if self._scheme == "smtp+starttls":
                server.starttls(context=self._tls())
            if self._user:
                server.login(self._user, self._password)
        except BaseException:
            server.close()
            raise
        return server

    def _mail(self, digest: Digest) -> EmailMessage:
        mail = EmailMessage()
        subject = " ".join(self._filled(_SUBJECT, digest).split())
        mail["Subject"] = subject[:_SUBJECT_LENGTH_MAX]
        mail["From"] = self._sender
        mail["To"] = self._recipients
        mail["Date"] = format_datetime(digest.time)
        mail["Message-ID"] = f"<{digest.digest_id}@{self._sender.domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(self._filled(_TEXT, digest))
        mail.add_alternative(self._filled(_HTML, digest), subtype="html")
        return mail

    def _filled(self, template: str, digest: Digest) -> str:
        return self._templates.get_template(template).render(digest=digest)


def _addresses(text: str, setting: str) -> tuple[Address, ...]:
    try:
        return addresses_of(text)
    except ValueError as error:
        hint = f"{setting}={text!r}: write it like ops@shop.example"
        raise ConfigurationError(f"{hint} ({error})") from error


_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_EXAMPLE = Digest(
    digest_id="0" * 32,
    application="example",
    time=_MOMENT,
    total=2,
    shares=(EscalationCount(EscalationKind.DEAD_LETTER, "orders", "payments", 2, _MOMENT),),
    items=(
        Escalation(
            kind=EscalationKind.DEAD_LETTER,
            message_id="0" * 32,
            topic="orders",
            reason="an example",
            consumer_group="payments",
            message_key="1",
            create_date=_MOMENT,
        ),
    ),
)
