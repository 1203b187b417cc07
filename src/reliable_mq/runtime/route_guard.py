"""Who may change the routes and settings of a name server in the process of a broker with users.

Receives requests before they are handled. Returns the refusal of a request, or nothing. Everybody
may ask for routes, as at Apache's name server. Apache's also believes every registration: whoever
reaches it gets the messages of the clients that ask it.
"""

from reliable_mq.access.guard import Guard
from reliable_mq.access.policies import Action
from reliable_mq.access.resources import topic_resource
from reliable_mq.access.users import AccessRefused
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.line_limit import limited_log
from reliable_mq.plain_text import cut
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

log = limited_log(__name__)

CHANGES = frozenset(
    {
        *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER),
        # These two keep the routes of a broker that is silent.
        *(RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION),
        *(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        *(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER),
        *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG),
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
"""The requests that change something at a name server."""

_REASON_SHOWN_MAX = 300  # characters; a peer chooses the names in it
_SIGN = (
    " A broker signs with its innerClientAuthenticationCredentials, a user that may Update here."
)
_STARTING = "the broker of this name server is starting; try again later"


class RouteGuard:
    """Refuses changes of strangers. Until the broker has read its users, it refuses all.

    The broker in the same process needs no signature: nobody else can have its connection.
    """

    def __init__(self) -> None:
        self.guard: Guard | None = None

    def refusal_of(self, connection: PeerConnection, command: Command) -> Command | None:
        """Return the refusal of a request; None: it may be handled."""
        if connection.is_own or command.code not in CHANGES:
            return None
        if self.guard is None:
            return reply(command, ResponseCode.SYSTEM_BUSY, _STARTING)
        try:
            _check(self.guard, connection, command)
        except AccessRefused as error:
            reason = cut(str(error), _REASON_SHOWN_MAX)
            broker_events.ACCESS_REFUSED.log(
                log, code=command.code, client=connection.address, reason=reason
            )
            hint = _SIGN if command.code == RequestCode.REGISTER_BROKER else ""
            return reply(command, ResponseCode.NO_PERMISSION, f"{error}{hint}")
        return None


def _check(guard: Guard, connection: PeerConnection, command: Command) -> None:
    """Who may delete a topic may delete its route; all else is a change of the cluster."""
    user = guard.sender_of(command)
    if command.code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
        topic = topic_resource(command.ext_fields.get("topic", ""))
        guard.check(command, connection.address, topic, (Action.DELETE,))
    else:
        guard.authorize(user, command, connection.host, connection.address)
