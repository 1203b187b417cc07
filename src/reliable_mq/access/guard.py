"""The guard: whether a request may be handled.

Receives a command and the address of its sender. Returns, or raises the refusal in Apache's words.
Two questions, each with its own setting: who sends it (authentication), and may this user do that
(authorization).

Decisions of authorization are kept until a user or a policy changes. Signatures are checked each
time: each request has another one.
Source: Apache RocketMQ `DefaultAuthenticationHandler`, `UserAuthorizationHandler`,
`AclAuthorizationHandler`.
"""

import hmac
from collections.abc import Collection, Mapping

from reliable_mq.access.access_settings import AccessSettings
from reliable_mq.access.access_table import AccessTable
from reliable_mq.access.named import wanted_by
from reliable_mq.access.policies import Action
from reliable_mq.access.resources import Resource
from reliable_mq.access.rules import RULES
from reliable_mq.access.users import AccessRefused, User
from reliable_mq.limits import NAME_LENGTH_MAX
from reliable_mq.wire.codes import RequestCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.known_send import KnownSends
from reliable_mq.wire.request_signature import ACCESS_KEY, SIGNATURE, content_of_send
from reliable_mq.wire.signed_send import SignedSend

_DECIDED_MAX = 20_000  # decisions that are kept; an entry takes about 300 bytes
_NAMES_SIZE_MAX = 2 * NAME_LENGTH_MAX
_NOBODY = "Authorization failed. Please verify your access rights and try again."
# The frequent requests whose header alone says what they name, and the fields that do.
_QUICK: Mapping[int, tuple[str, str]] = {
    Code.SEND_MESSAGE: ("topic", ""),
    Code.SEND_MESSAGE_V2: ("b", ""),
    Code.SEND_BATCH_MESSAGE: ("b", ""),
    Code.PULL_MESSAGE: ("topic", "consumerGroup"),
    Code.LITE_PULL_MESSAGE: ("topic", "consumerGroup"),
    Code.QUERY_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    Code.UPDATE_CONSUMER_OFFSET: ("topic", "consumerGroup"),
    Code.END_TRANSACTION: ("topic", ""),
    Code.CONSUMER_SEND_MSG_BACK: ("group", ""),
}


class Guard:
    """Checks requests against the settings and the table of users and policies."""

    def __init__(self, settings: AccessSettings, table: AccessTable) -> None:
        self._settings = settings
        self._authorizes, self._unauthorized = settings.authorizes, settings.unauthorized
        self._table = table
        self.refused = 0
        """Requests since the start, and calls of the endpoint, that were refused."""

    def note_refused(self) -> None:
        """Count a refused request."""
        self.refused += 1

    def sender_admitted(self, command: SignedSend, host: bytes) -> User | None:
        """Return who has signed a send that may be handled; None: the general way must decide.

        This is the short way for what comes most often. It knows only one answer, yes: the sender
        writes its fields as Apache's client does, the signature is right, and the same was allowed
        before; see `note_sender`.

        Args:
            command: the send.
            host: the packed address of its sender.
        """
        header = command.send_header
        user = self._table.senders.get((header.access_key, header.topic, command.code, host[:-4]))
        if user is None:
            return None
        made = user.signer.of_content(content_of_send(header), command.body)
        return user if hmac.compare_digest(made, header.signature.encode()) else None

    def sender_of_known(self, sends: KnownSends, host: bytes) -> User | None:
        """Return who has signed all of these sends, as `sender_admitted` does for one."""
        shape, senders = sends.shape, self._table.senders
        if shape.signature is None:
            return None
        user = senders.get((shape.signature.access_key, shape.header.topic, sends.code, host[:-4]))
        return user if user is not None and sends.are_signed_by(user.signer) else None

    def note_sender(self, user: User | None, command: Command, host: bytes) -> None:
        """Note that the general way has admitted a send of a user: until a user or policy changes.

        Args:
            user: who has signed it; None: nobody.
            command: the send, with all its fields.
            host: the packed address of its sender.
        """
        topic, senders = command.ext_fields.get("b", ""), self._table.senders
        if user is None or len(topic) > NAME_LENGTH_MAX:
            return
        if len(senders) >= _DECIDED_MAX:
            senders.clear()
        senders[user.username, topic, command.code, host[:-4]] = user

    def authorize(self, user: User | None, command: Command, host: bytes, address: str) -> None:
        """Return if a request may be handled.

        Args:
            user: who has signed it, by `sender_of`; None: nobody.
            command: the request, with all its fields.
            host: the packed address of its sender, the port in the last 4 bytes.
            address: the same as "ip:port".

        Raises:
            AccessRefused: it may not.
        """
        code, fields = command.code, command.ext_fields
        if not self._authorizes or code in self._unauthorized:
            return
        if user is None:
            raise AccessRefused(_NOBODY)
        if user.is_super:
            return
        quick = _QUICK.get(code)
        if quick is None:
            self._authorize_all(user, command, address)
            return
        one, other = fields.get(quick[0], ""), fields.get(quick[1], "")
        key = (user.username, host[:-4], code, one, other)
        fault = self._table.decided.get(key)
        if fault is None:
            fault = self._fault_of_all(user, command, address)
            self._keep(key, fault, len(one) + len(other))
        if fault:
            raise AccessRefused(fault)

    def check(
        self, command: Command, address: str, resource: Resource, actions: tuple[Action, ...]
    ) -> None:
        """Return if the sender of an admitted request may do one of these actions, too.

        Args:
            command: the request; `authorize` has let it pass.
            address: the address of its sender, "ip:port".
            resource: what the request is about, though it does not name it.
            actions: one of them is enough.

        Raises:
            AccessRefused: the sender may not.
        """
        if not self._authorizes or command.code in self._unauthorized:
            return
        user = self._table.users.get(command.ext_fields.get(ACCESS_KEY, ""))
        if user is None:
            raise AccessRefused(_NOBODY)
        fault = self.fault_of(user, resource, actions, _ip_of(address))
        if fault:
            raise AccessRefused(fault)

    def may(self, name: str, resource: Resource, actions: tuple[Action, ...], address: str) -> bool:
        """Whether a user who was let in may do one of these actions now.

        Args:
            name: the user; "": nobody had to sign.
            resource: what it is about.
            actions: one of them is enough.
            address: "ip:port" of the user.
        """
        if not name:
            return not self._authorizes
        user = self._table.users.get(name)
        if user is None or not user.is_enabled:
            return False
        return not (self._authorizes and self.fault_of(user, resource, actions, _ip_of(address)))

    def check_again(self, name: str, command: Command, address: str) -> None:
        """Return if a request that was let in, and has waited, may still be answered.

        Args:
            name: who has signed it; "": nobody had to.
            command: the request; the fields with names are enough.
            address: the address of its sender, "ip:port".

        Raises:
            AccessRefused: the user or a policy was changed meanwhile.
        """
        if not name:
            return  # the settings do not change
        user = self.claimed(name)
        if self._authorizes and not user.is_super and command.code not in self._unauthorized:
            self._authorize_all(user, command, address)

    def own_user(self) -> User | None:
        """Return who signs what a part of this process asks: a super user. None: there is none."""
        if self._settings.inner_client is not None:
            return self._settings.inner_client
        users = self._table.users.values()
        return next((each for each in users if each.is_super and each.is_enabled), None)

    def sender_of(self, command: Command) -> User | None:
        """Return the user who has signed a request; None: nobody has, which is allowed.

        Raises:
            AccessRefused: a signature is needed, and there is no valid one.
        """
        fields = command.ext_fields
        name = fields.get(ACCESS_KEY, "")
        user = self._table.users.get(name)
        if user is None or not user.is_enabled:
            if not name and command.code in self._settings.unauthenticated:
                return None
            user = self.claimed(name)
        made = user.signer.signature(fields, command.body, command.version)
        if not hmac.compare_digest(made, fields.get(SIGNATURE, "").encode()):
            raise AccessRefused("check signature failed.")
        return user

    def claimed(self, name: str) -> User:
        """Return the user whom a sender claims to be.

        Raises:
            AccessRefused: there is no such user, or the user is disabled.
        """
        if not name:
            raise AccessRefused("username cannot be null.")
        user = self._table.users.get(name)
        if user is None:
            raise AccessRefused(f"User:{name} is not found.")
        if not user.is_enabled:
            raise AccessRefused(f"User:{name} is disabled.")
        return user

    def _authorize_all(self, user: User, command: Command, address: str) -> None:
        fault = self._fault_of_all(user, command, address)
        if fault:
            raise AccessRefused(fault)

    def _fault_of_all(self, user: User, command: Command, address: str) -> str:
        """Return why a user may not send a request; "": it may."""
        rule = RULES.get(command.code)
        if rule is None:
            return f"{user.subject}: only super users may send requests with code {command.code}"
        ip = _ip_of(address)
        for resource, actions in wanted_by(command, rule, self._settings.cluster):
            fault = self.fault_of(user, resource, actions, ip)
            if fault:
                return fault
        return ""

    def fault_of(self, user: User, resource: Resource, actions: Collection[Action], ip: str) -> str:
        """Return why a user may not do one of these actions with a resource; "": it may."""
        key = (user.username, ip, resource, actions)
        fault = self._table.decided.get(key)
        if fault is None:
            fault = self._table.fault_of(user, resource, actions, ip)
            self._keep(key, fault, len(resource.name))
        return fault

    def _keep(self, key: object, fault: str, size: int) -> None:
        """Keep a decision, unless the names in it have more characters than any real name."""
        decided = self._table.decided
        if len(decided) >= _DECIDED_MAX:
            decided.clear()
        if size <= _NAMES_SIZE_MAX:
            decided[key] = fault


def _ip_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
