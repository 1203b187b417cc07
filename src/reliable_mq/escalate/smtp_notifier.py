"""Tells by mail. Receives digests; hands on one mail for each to a mail server.

Texts are Jinja2 templates, `templates/escalation.*`, in a sandbox; an application may bring its own
of the same names. A mail bears its digest's id as Message-ID: when a digest is sent once more
because nobody knows whether it arrived, a mail program knows the copy.
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

log = logging.getLogger(__name__)

_PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
_SUBJECT, _TEXT, _HTML = "escalation.subject.txt", "escalation.txt", "escalation.html"
_SUBJECT_LENGTH_MAX = 200


def _parts_of(server: str) -> tuple[SplitResult, HostAndPort]:
    """Return the parts of a URL, its host and its port, or refuse it and show nothing of it.

    Of a password that is not encoded a part reads as the port, and the errors of connections, too,
    would tell that.
    """
    with contextlib.suppress(ValueError):
        parts = urlsplit(server)
        if "@" not in f"{parts.path}{parts.query}{parts.fragment}":
            return parts, place_of_authority(parts.netloc) or HostAndPort("", None)
    raise ConfigurationError(
        "the URL of the mail server does not read: one is written smtps://user:password@host:465,"
        " and /?#[]@ in the login as %2F %3F %23 %5B %5D %40"
    )


class SmtpNotifier:
    """Sends one mail for each digest.

    Args:
        server: `smtp://host:25`, `smtp+starttls://user:password@host:587` or
            `smtps://user:password@host:465`; user and password are percent-encoded.
        sender: the address that mails come from, also with a name: `MQ <mq@shop.example>`.
        recipients: the addresses that they go to, with commas between them.
        cooldown: seconds from one mail to the next.
        timeout: seconds after which a server that does not answer is given up.
        templates: a folder with `escalation.subject.txt`, `escalation.txt` or `escalation.html`,
            each instead of ours; they get `digest`, a `Digest`.
        name: the notifier's name.
        tls: makes the TLS context, for a server with a certificate of your own; default: one that
            trusts what the system trusts.

    Raises:
        ConfigurationError: when the URL, an address or a template does not read.
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
                f"a mail server is {' or '.join(f'{scheme}://…' for scheme in _PORTS)}, not "
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
            self._mail(_EXAMPLE)  # a template that cannot be filled is told at the start
        except Exception as error:  # whatever the words of a template make of an example
            raise ConfigurationError(
                f"the templates of mails cannot be filled: {type(error).__name__}: {error}"
            ) from error

    def tell(self, digest: Digest) -> None:
        """Send the mail.

        Raises:
            smtplib.SMTPException, OSError: when the server did not take it for any recipient.
        """
        mail = self._mail(digest)
        server = self._connected()
        try:
            refused = server.send_message(mail)
            with contextlib.suppress(smtplib.SMTPException, OSError):  # it was taken already
                server.quit()
        finally:
            server.close()
        for address, (code, text) in refused.items():
            said = text.decode("utf-8", "replace")
            log.error("notifier %s: %s was refused: %d %s", self.name, address, code, said)

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
