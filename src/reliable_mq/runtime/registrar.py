"""The registrar: registers a broker's topics with name servers.

It receives the changed topics. It sends registrations, and then the replies that waited for them.
It registers all topics with a new name server and every 30 s. Between these it registers only the
changes: sending 10,000 topics because of a new one would block both sides for a moment.
Source: Apache RocketMQ `BrokerController.registerIncrementBrokerData`, `registerSingleTopicAll`.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from reliable_mq.access.users import User
from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.registration import (
    heartbeat,
    registrations,
    take_order_topics,
    topic_registration,
    unregistration,
)
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.errors import FrameError, Unavailable
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broken import OnBroken, die, watched
from reliable_mq.runtime.link import Link, Sign
from reliable_mq.runtime.links import Dial, Links
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.outages import Outages
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import SECOND_MASTER
from reliable_mq.wire.request_signature import add_signature

log = limited_log(__name__)

MASTERLESS_SECONDS = 3.0
"""Between two registrations of a slave whose master is not known: it registers later than it."""
_TIMEOUT = 6.0
_FAREWELL_TIMEOUT = 1.0

Replies = list[Answer]


class Registrar:
    """The registrations of one broker.

    Invariant N2: a name server that may lack topics gets all topics in the next registration.
    Only one registration is in progress at a time.

    Args:
        state: the broker.
        addresses: the name servers, "host:port" each.
        send: sends replies after the name servers have received their topics.
        on_broken: takes an unexpected exception.
        tls: see `Links`; for the connections to the name servers.
        dial: see `Links`; for a name server in this process.
    """

    def __init__(
        self,
        state: BrokerState,
        addresses: Sequence[str],
        send: Callable[[Replies], None],
        on_broken: OnBroken = die,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        dial: Dial | None = None,
    ) -> None:
        self._on_broken = on_broken
        self._state = state
        self.addresses = addresses
        self._send = send
        self._informed: set[str] = set()  # name servers that have all topics but the changed ones
        self._is_all_due = False
        self._is_missing_due = False  # whether a name server that lacks topics is tried again
        self._waiting: Replies = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._outages = Outages()  # name servers at which it cannot register
        self.on_second_master: Callable[[str], None] = lambda _remark: None
        self.master = ""  # of a slave, as the name servers know it: "host:port"
        self.master_ha = ""  # its address for slaves
        self.is_controlled = False  # whether a controller says who the master is
        self._links = Links(
            connect_timeout=_TIMEOUT,
            on_request=lambda _address, _command: None,
            greet=send_nothing,
            on_lost=self._informed.discard,
            sign=sign_as(state.config.access.inner_client),
            tells_outages=False,
            tls=tls,
            dial=dial,
        )

    @property
    def pause_seconds(self) -> float:
        """Seconds until all topics are registered again; few while a slave knows no master."""
        pause = self._state.config.register_interval_ms / 1000
        lacks_master = self._state.config.is_slave and not self.master
        return min(pause, MASTERLESS_SECONDS) if lacks_master else pause

    def register_changes(self, replies: Replies) -> None:
        """Register the changed topics, if there are any, and then send `replies`.

        A registration in progress is finished first. Replies are sent at once when nothing has
        changed, or when the broker has unregistered.
        """
        if self._is_closed:
            self._send(replies)
            return
        self._waiting += replies
        if self._waiting or self._state.unregistered:
            self._begin()

    async def register(self) -> None:
        """Register all topics with every name server. Return when each has accepted or failed."""
        self._is_all_due = True
        await self._begin()

    async def register_forever(self) -> None:
        """Register all topics again and again; the caller cancels it."""
        while True:
            await asyncio.sleep(self.pause_seconds)
            await self.register()

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None or self._task.done():
            self._task = watched(self._register(), self._on_broken)
        return self._task

    @property
    def _is_due(self) -> bool:
        is_wanted = self._is_all_due or self._is_missing_due
        return bool(self._waiting or is_wanted or self._state.unregistered)

    async def _register(self) -> None:
        while self._is_due:
            replies, self._waiting = self._waiting, []
            self._is_missing_due = False
            if self._is_all_due:
                self._is_all_due = False
                self._informed.clear()
            names = self._state.take_unregistered()
            try:
                if names or len(self._informed) < len(self.addresses):
                    await asyncio.gather(
                        *(self._register_names(address, names) for address in self.addresses)
                    )
            finally:  # also when the broker unregisters meanwhile
                self._send(replies)

    async def _register_names(self, address: str, names: list[str]) -> None:
        """Register the topics `names` with one name server, or all topics if it may lack some."""
        if address in self._informed:
            if not names:
                return
            if self._state.config.single_topic_register:
                requests = (topic_registration(self._state, name) for name in names)
                commands = [one for one in requests if one]
                is_told = all(await asyncio.gather(*(self._call(address, c) for c in commands)))
            else:
                is_told = await self._call_all(address, names)
            if is_told:
                return
        if await self._call_all(address):
            self._informed.add(address)

    async def ask(self, address: str, command: Command) -> Command:
        """Send a request to a name server, and return its answer.

        Raises:
            Unavailable, FrameError: it does not answer.
        """
        return await self._links.call(address, command, _TIMEOUT)

    async def _call_all(self, address: str, names: list[str] | None = None) -> bool:
        """Register all topics, or `names`, part by part; return whether all were accepted."""
        for command in registrations(self._state, names):
            if not await self._call(address, command):
                return False
        return True

    async def _call(self, address: str, command: Command) -> bool:
        """Send one registration; return whether the name server accepted it."""
        try:
            answer = await self._links.call(address, command, _TIMEOUT)
        except (Unavailable, FrameError) as error:
            if self._outages.lose(address, now_ms() / 1000):
                broker_events.REGISTRATION_FAILED.log(log, name_server=address, error=error)
            self._informed.discard(address)
            return False
        if answer.code != ResponseCode.SUCCESS:
            broker_events.REGISTRATION_REFUSED.log(log, name_server=address, remark=answer.remark)
            if SECOND_MASTER in answer.ext_fields:
                self.on_second_master(f"name server {address}: {answer.remark}")
            return False
        if self._outages.find(address, now_ms() / 1000) is not None:
            broker_events.REGISTRATION_BACK.log(log, name_server=address)
        master = answer.ext_fields.get("masterAddr")
        if master and not self.is_controlled:
            self.master, self.master_ha = master, answer.ext_fields.get("haServerAddr", "")
        take_order_topics(self._state, answer.body, now_ms())
        return True

    async def beat_forever(self) -> None:
        """Send heartbeats, and register at once where the broker is not known any more."""
        config = self._state.config
        while True:
            await asyncio.sleep(config.heartbeat_ms / 1000)
            if len(self._informed) < len(self.addresses):
                self._is_missing_due = True
                self._begin()
            for address in tuple(self._informed):
                with contextlib.suppress(Unavailable):  # the next registration tells it
                    await self._links.post(address, heartbeat(config), config.heartbeat_ms / 1000)

    async def unregister(self) -> None:
        """Cancel a registration in progress, and unregister at every name server.

        Waiting replies are sent: the topics are saved, but no name server gets them now.
        """
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        replies, self._waiting = self._waiting, []
        self._send(replies)
        for address in self.addresses:
            try:
                await self._links.call(address, unregistration(self._state), _FAREWELL_TIMEOUT)
            except (Unavailable, FrameError) as error:
                broker_events.UNREGISTRATION_FAILED.log(log, name_server=address, error=error)

    async def close(self) -> None:
        """Close the connections."""
        await self._links.close()


def sign_as(user: User | None) -> Sign | None:
    """Return the function that signs as a user; None: requests are not signed."""
    if user is None:
        return None
    return partial(add_signature, access_key=user.username, secret=user.password)


def asking_links(
    config: BrokerConfig,
    timeout: float,
    tls: Callable[[], ssl.SSLContext] | None,
    dial: Dial | None = None,
) -> Links:
    """Return links of a broker that asks other servers, and signs as the inner client.

    Args:
        config: of the broker.
        timeout: seconds until an attempt to connect is given up.
        tls: see `Links`.
        dial: of the name server in this process; the broker knows no other one then. None: it has
            none.
    """
    return Links(
        connect_timeout=timeout,
        on_request=lambda _address, _command: None,
        greet=send_nothing,
        on_lost=lambda _address: None,
        sign=sign_as(config.access.inner_client),
        tells_outages=False,
        tls=tls,
        dial=dial,
        dialled=config.name_servers.split(";"),
    )


async def send_nothing(_address: str, _link: Link) -> None:
    """Send nothing: a name server needs no greeting."""
