"""Signatures of what an application receives: checked before a claim.

Receives deliveries; hands on why one must have no effect. Refuses to sign: the client does that,
with the `Signer` of the same settings, for whatever leaves.
"""

from reliable_mq.line_limit import limited_log
from reliable_mq.message import ReceivedMessage
from reliable_mq.settings import Settings
from reliable_mq.signature import Signer, signer_of

log = limited_log(__name__)


class SignatureCheck:
    """Says which deliveries of one consumer group must have no effect.

    Such a message takes no claim and touches no row: the message whose id it took comes later.
    """

    def __init__(self, signer: Signer, group: str) -> None:
        self._signer, self._group = signer, group

    def fault_of(self, message: ReceivedMessage) -> str:
        """Return why a delivery is refused, and write it to the log; "" when it is not."""
        fault = self._signer.fault_of(message)
        if not fault:
            return ""
        log.error(
            "group %s: message %s of topic %s is refused: %s",
            *(self._group, message.message_id, message.topic, fault),
        )
        return f"refused: {fault}"


def signer_by(settings: Settings) -> Signer | None:
    """Return what signs and checks messages by the settings; None: nothing does."""
    keys = settings.signing_keys.get_secret_value()
    return signer_of(keys, is_required=settings.signing_required)
