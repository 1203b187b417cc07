"""Checks the signatures of received messages before a claim.

Receives deliveries; returns why one must have no effect. It does not sign: the client signs all
messages that it sends, with the `Signer` of the same settings.
"""

from reliable_mq.line_limit import limited_log
from reliable_mq.message import ReceivedMessage
from reliable_mq.settings import Settings
from reliable_mq.signature import Signer, signer_of
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.message_facts import facts_of

log = limited_log(__name__)


class SignatureCheck:
    """Decides which deliveries of one consumer group must have no effect.

    Such a message gets no claim and changes no row: the real message with its id may come later.
    """

    def __init__(self, signer: Signer, group: str) -> None:
        self._signer, self._group = signer, group

    def fault_of(self, message: ReceivedMessage) -> str:
        """Return why a delivery is refused, and log it; "": it is not refused."""
        fault = self._signer.fault_of(message)
        if not fault:
            return ""
        application_events.SIGNATURE_REFUSED.log(
            log, group=self._group, **facts_of(message), reason=fault
        )
        return f"refused: {fault}"


def signer_by(settings: Settings) -> Signer | None:
    """Return the signer of the settings; None: messages are neither signed nor checked."""
    keys = settings.signing_keys.get_secret_value()
    return signer_of(keys, is_required=settings.signing_required)
