"""The engine of a client on an event loop: runs flows over connections.

It receives flows and returns their results. It takes no decisions: flows and the group membership
(`asyncio_membership`) do that. A request of a peer goes to its handler in `requests`. The clients
(`asyncio_client`, `thread_client`) are verbs on top of the engine.
"""

import asyncio
import logging
import os
import platform
import time
from typing import Any, TypeVar

import msgspec

from reliable_mq.client.asyncio_daemon import repeat
from reliable_mq.client.connecting.asyncio_membership import AsyncMembership
from reliable_mq.client.connecting.file_tls import fresh_context
from reliable_mq.client.connecting.name_servers import NameServers, parse_addresses
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.flow import (
    Call,
    CallAll,
    Flow,
    Instant,
    Now,
    Once,
    Post,
    Together,
    Wait,
    Work,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    ConfigurationError,
    ForkedClient,
    ReliableMQError,
    RequestTimeout,
    UsageError,
    closed,
)
from reliable_mq.runtime.asyncio_threads import in_thread
from reliable_mq.runtime.direct_link import DirectLink
from reliable_mq.runtime.forks import call_in_child, leave_to_parent
from reliable_mq.runtime.lease_clock import lease_clock
from reliable_mq.runtime.link import Link, OnRequest
from reliable_mq.runtime.links import Links
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.outages import level_of
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply

log = logging.getLogger(__name__)

T = TypeVar("T")

REFRESHES_AT_ONCE = 64
"""How many routes are refreshed at the same time."""


class AsyncEngine:
    """Connections, routes and membership of one client.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: timeouts, limits and intervals.

    Raises:
        ConfigurationError: when `name_servers` cannot be parsed, a file of `tls` cannot be read, or
            `settings` is not a `ClientSettings`.
    """

    def __init__(self, name_servers: str, settings: ClientSettings) -> None:
        if not isinstance(settings, ClientSettings):
            raise ConfigurationError(f"settings is {settings!r:.100}: give ClientSettings(…)")
        #: translates names of topics and groups between the application and brokers
        self.namespace = Namespace(settings.namespace)
        settings = msgspec.structs.replace(
            settings, producer_group=self.namespace.full_name(settings.producer_group)
        )
        self.settings = settings
        unique = settings.instance_name or f"{os.getpid()}#{os.urandom(6).hex()}"
        self.client_id = f"{platform.node() or 'client'}@{unique}"
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: the clock for locks and leases that this client holds or grants
        self.lease_clock = lease_clock()
        self._name_servers = NameServers(
            parse_addresses(name_servers), settings.request_timeout_seconds
        )
        self._routes = RouteCache(
            self._name_servers, settings.new_topic_queues, settings.route_refresh_seconds
        )
        self._tls = fresh_context(settings.tls) if settings.tls else None
        self._links: Links | None = None
        self._is_closed = False
        self._daemons: list[asyncio.Task[None]] = []
        self._shared: dict[tuple[str, ...], asyncio.Task[Any]] = {}
        #: the groups of this client
        self.membership = AsyncMembership(self)
        self._is_producer = False
        #: handlers of peers' requests, by request code; a handler may return None for no answer
        self.requests: dict[int, OnRequest] = self.membership.requests()

    @property
    def routes(self) -> RouteCache:
        """The routes that this client knows; for use in flows."""
        return self._routes

    @property
    def name_servers(self) -> NameServers:
        """The name servers; for use in flows."""
        return self._name_servers

    async def start(self) -> None:
        """Make the client ready. Connections are opened on first use.

        Raises:
            ForkedClient: when the client was made before a fork: each process needs its own name.
            UsageError: when it was started before.
        """
        self._refuse_in_fork()
        if self._links is not None:
            raise UsageError("this client was started before: create a new one")
        settings = self.settings
        self._loop = asyncio.get_running_loop()
        self._links = Links(
            connect_timeout=settings.connect_timeout_seconds,
            on_request=self._answer_request,
            greet=self.membership.send_first_heartbeat,
            on_lost=self.membership.lost,
            sign=Signing(settings.credentials) if settings.credentials else None,
            tls=self._tls,
            tls_hostname=settings.tls.hostname if settings.tls else "",
            busy_wait_seconds=settings.busy_wait_seconds,
        )
        self._daemons = [
            asyncio.create_task(
                repeat(settings.route_refresh_seconds, self._refresh, "the refresh of routes")
            ),
            asyncio.create_task(repeat(settings.heartbeat_seconds, self.heartbeat, "a heartbeat")),
        ]
        call_in_child(self._leave_to_parent)

    async def stop_daemons(self) -> None:
        """Stop the refresh of routes and the heartbeats."""
        for daemon in self._daemons:
            daemon.cancel()
        await asyncio.gather(*self._daemons, return_exceptions=True)

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow over the connections of this client; return its result.

        Raises:
            UsageError: when called on another event loop than the client's.
        """
        if asyncio.get_running_loop() is not self._loop:
            self.refuse_other_loop()
        answer: Any = None
        failure: ReliableMQError | None = None
        try:
            while True:
                step = flow.throw(failure) if failure is not None else flow.send(answer)
                failure = None
                try:  # the two steps of nearly every flow cost no more calls than they need
                    if isinstance(step, Now):
                        answer = self.now()
                    elif isinstance(step, Call):
                        answer = await self._call(step)
                    else:
                        answer = await self._answer(step)
                except ReliableMQError as error:
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()

    def now(self) -> Instant:
        """Return the time on all clocks of `Instant`. Safe from any thread, after the start."""
        seconds = (self._loop or asyncio.get_running_loop()).time()
        return Instant(seconds, time.time_ns() // 1_000_000, self.lease_clock())

    def seconds(self) -> float:
        """Return the loop's time, in seconds. Safe from any thread, after the start."""
        return (self._loop or asyncio.get_running_loop()).time()

    def join_producer_group(self) -> None:
        """Join the producer group. Brokers learn of it with the next heartbeat.

        Raises:
            UsageError: when the client is closed.
        """
        if self._is_closed:
            raise closed("client")
        if not self._is_producer:
            self.membership.produce(self.settings.producer_group)
            self._is_producer = True

    async def heartbeat(self) -> None:
        """Send heartbeats with this client's groups to all brokers in known routes."""
        await self.membership.heartbeat()

    async def send_full_heartbeats(self) -> None:
        """Send full heartbeats to all brokers, including subscriptions that they seem to know."""
        await self.membership.send_full_heartbeats()

    def clear_link(self, address: str) -> Link | None:
        """Return the connection to `address` if a request can be sent on it at once."""
        if self._links is None or self._process != os.getpid():
            return None
        if asyncio.get_running_loop() is not self._loop:
            return None
        link = self._links.by_address.get(address)
        return link if link is not None and link.is_clear else None

    @property
    def has_direct_links(self) -> bool:
        """Whether there is a direct link. Safe from any thread."""
        return self._links is not None and self._links.has_direct

    def direct_link(self, address: str) -> DirectLink | None:
        """Take the direct link to `address` if it is free, and return it.

        Safe from any thread, in the process that made the client.
        """
        return self._started().direct(address)

    def note_single_thread(self, link: Link) -> None:
        """Note that one thread sends alone on a connection."""
        self._started().note_single_thread(link)

    def answer(self, address: str, command: Command) -> None:
        """Send a reply on the connection to `address`, if it is still there."""
        self._started().answer(address, command)

    def open_addresses(self) -> set[str]:
        """Return the addresses with a connection."""
        return {link.address for link in self._started().open_links()}

    def drop(self, address: str) -> None:
        """End the connection to a peer that does not answer. The next call opens a new one."""
        self._started().drop(address)

    async def _answer(self, step: CallAll | Post | Once | Together | Wait | Work) -> Any:
        if isinstance(step, CallAll):
            return await asyncio.gather(*map(self._call_or_failure, step.calls))
        if isinstance(step, Once):
            return await self._once(step)
        if isinstance(step, Together):
            return await asyncio.gather(*map(self.run, step.flows))
        if isinstance(step, Post):
            timeout = self.settings.request_timeout_seconds
            return await self._started().post(step.address, step.command, timeout)
        if isinstance(step, Work):
            return await in_thread(step.function)
        return await asyncio.sleep(step.seconds)

    async def _call(self, step: Call) -> Command:
        links = self._links
        if links is None or self._process != os.getpid():
            links = self._started()
        link = links.by_address.get(step.address)
        try:
            if link is None:
                return await links.call(step.address, step.command, step.timeout)
            return await link.call(step.command, step.timeout)
        except RequestTimeout:
            if step.address in self._name_servers.addresses:  # name servers get no heartbeats
                links.drop(step.address)
            raise

    async def _call_or_failure(self, step: Call) -> Command | ReliableMQError:
        try:
            return await self._call(step)
        except ReliableMQError as error:
            return error

    async def _once(self, step: Once) -> Any:
        task = self._shared.get(step.key)
        if task is None:
            task = asyncio.create_task(self.run(step.flow()))
            self._shared[step.key] = task
            task.add_done_callback(lambda done: self._shared_ended(step.key, done))
        return await asyncio.shield(task)

    def _shared_ended(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        del self._shared[key]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved, so that asyncio does not report it

    async def _refresh(self) -> None:
        """Refresh all routes, many at a time: a slow answer delays few others."""
        self._routes.forget_idle()
        places = asyncio.Semaphore(REFRESHES_AT_ONCE)
        await asyncio.gather(*(self._refresh_one(topic, places) for topic in self._routes.topics()))

    async def _refresh_one(self, topic: str, places: asyncio.Semaphore) -> None:
        async with places:
            try:
                await self.run(self._routes.look_up(topic))
            except ReliableMQError as error:
                client_events.ROUTE_NOT_REFRESHED.log(
                    log, level=level_of(error), topic=topic, error=error
                )

    def _answer_request(self, address: str, command: Command) -> Command | None:
        """Handle a peer's request."""
        serve = self.requests.get(command.code)
        if serve is not None:
            try:
                return serve(address, command)
            except Exception:  # noqa: BLE001 - a bad request must not end the connection, which others share
                client_events.REQUEST_UNUSABLE.log(
                    log, traceback_of=True, peer=address, code=command.code
                )
                return reply(command, ResponseCode.SYSTEM_ERROR, "the request cannot be handled")
        client_events.REQUEST_UNSUPPORTED.log(log, peer=address, code=command.code)
        remark = f" request type {command.code} not supported"
        return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _started(self) -> Links:
        self._refuse_in_fork()
        if self._links is None:
            raise UsageError("this client is not started: use it in `async with`, or call start()")
        return self._links

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the process that made the client."""
        return self._process != os.getpid()

    def _leave_to_parent(self) -> None:
        """Keep the garbage collector of a forked child from closing the parent's connections."""
        leave_to_parent(self)

    def refuse_other_loop(self) -> None:
        """Refuse to work on another event loop than the client's.

        Raises:
            UsageError: when this is another one.
        """
        is_other = self._loop not in (None, asyncio.get_running_loop())
        if is_other and not self.is_foreign:
            raise UsageError(
                "this client was started on another event loop than it is used on: start one on"
                " each loop, or use Client, which has a loop of its own"
            )

    def _refuse_in_fork(self) -> None:
        if self.is_foreign:
            raise ForkedClient(
                f"this client was made in process {self._process} and is used in {os.getpid()}:"
                " make a client there, after the fork"
            )
