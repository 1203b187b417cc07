"""One broker at the controller: it gets a number, says that it lives, and learns who the master is.

It lives longer than the broker that it stands for: a broker that changes its role starts again in
this process, and meanwhile the heartbeats go on. The controller elects; this module only asks.
Source: Apache RocketMQ `ReplicasManager`.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.errors import FrameError, StoreError, Unavailable
from reliable_mq.failover import controller_messages as messages
from reliable_mq.failover.controller_messages import Leadership, LiveState
from reliable_mq.failover.epochs import PATH as EPOCHS_PATH
from reliable_mq.failover.epochs import load_epochs
from reliable_mq.failover.identity import (
    APPLIED_PATH,
    PATH,
    Identity,
    check_identity,
    load_identity,
)
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broken import OnBroken, die, watched
from reliable_mq.runtime.broker_members import ASKING_FAULTS
from reliable_mq.runtime.registrar import asking_links
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.record import address_of

log = limited_log(__name__)

HEARTBEAT_SECONDS = 1.0
"""Between two heartbeats: `brokerHeartbeatInterval`."""
JOIN_SECONDS = 1.0
"""Between two attempts to join a controller that does not answer, or elects nobody."""
_TIMEOUT = 3.0


class ControllerMember:
    """One broker at the controller.

    Attributes:
        identity: who the broker is; None: it has no number yet.
        leadership: who the master is, as far as it is known.
        replicas: the addresses of all brokers of the name, by number, as the controller knows them.
        live: returns what heartbeats say.
        on_change: called with each look at who the master is.
        on_taken: called when another broker has this broker's number.

    Args:
        config: of the broker.
        tls: see `Links`.
        on_broken: takes an unexpected exception.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_broken: OnBroken = die,
    ) -> None:
        self._config = config
        self._on_broken = on_broken
        self._address = ""
        self._leader = ""
        self._told = ""  # the trouble that has a line in the log
        self._tasks: list[asyncio.Task[None]] = []
        self._stored_epoch = -1  # the newest one of this broker's log
        self._hint = asyncio.Event()
        self._one = asyncio.Lock()  # a look and a change of the set do not overtake each other
        self._links = asking_links(config, _TIMEOUT, tls)
        self.identity: Identity | None = None
        self.leadership = Leadership(0, "", 0)
        self.replicas: dict[int, str] = {}
        self.live: Callable[[], LiveState] = lambda: LiveState(-1, -1, -1)
        self.on_change: Callable[[Leadership], None] = lambda _leadership: None
        self.on_taken: Callable[[StoreError], None] = lambda _error: None

    @property
    def own_id(self) -> int:
        """The broker's number at the controller; 0: it has none yet."""
        return self.identity.broker_id if self.identity is not None else 0

    async def join(self, disk: Disk, port: int) -> Leadership:
        """Register a broker, and return who the master is. This waits until there is one.

        A slave that starts again in this process goes on without a controller: it was told before.
        A master waits for the controller, which says who is in sync.

        Args:
            disk: the broker's store.
            port: at which the broker listens.

        Raises:
            StoreError: when the store is of another broker, or another broker has its number.
        """
        self._address = address_of(self._config.broker_ip, port)
        while True:
            try:
                async with self._one:
                    self.leadership = await self._join(disk)
            except ASKING_FAULTS as error:
                self._tell(error)
                if self.leadership.master_id not in (0, self.own_id):
                    return self.leadership
            else:
                self._told = ""
                return self.leadership
            await asyncio.sleep(JOIN_SECONDS)

    async def _join(self, disk: Disk) -> Leadership:
        self.identity = await self._identify(disk)
        await self._check_alone(self.identity)
        answer = await self._ask(messages.register(self.identity, self._address, now_ms()))
        leadership = messages.leadership_of(answer)
        self._stored_epoch = load_epochs(disk.read_text(EPOCHS_PATH)).last
        await self._beat(self._leader, self.identity)
        if not self._tasks:
            beats = map(self._beat_forever, self._config.controller_addresses)
            works = (*beats, self._look_forever())
            self._tasks = [watched(each, self._on_broken) for each in works]
        if not leadership.master_id:
            leadership = await self._elected(self.identity, leadership)
        self._refuse_older(leadership)
        if not leadership.master_id:
            raise ValueError(
                f"nobody can be elected: replicas {sorted(leadership.in_sync)} are in sync, and "
                "none of them is there"
            )
        return leadership

    async def _identify(self, disk: Disk) -> Identity:
        """Return who this broker is; a new one applies for a number."""
        cluster, name = self._config.broker_cluster_name, self._config.broker_name
        if (known := load_identity(disk.read_text(PATH), PATH)) is not None:
            check_identity(known, cluster, name)
            return known
        applied = load_identity(disk.read_text(APPLIED_PATH), APPLIED_PATH)
        if applied is None:
            await self._check_cluster(name, cluster)
        else:
            check_identity(applied, cluster, name)
        while True:
            if applied is None:
                number = messages.next_id_of(await self._ask(messages.ask_next_id(cluster, name)))
                applied = Identity(cluster, name, number, f"{self._address};{now_ms()}")
                disk.write_text(APPLIED_PATH, applied.dump())
            if messages.is_granted(await self._ask(messages.apply_id(applied))):
                break
            applied = None
        identity = applied._replace(code="")
        disk.write_text(PATH, identity.dump())
        disk.remove(APPLIED_PATH)
        return identity

    async def _check_cluster(self, name: str, cluster: str) -> None:
        """Raise if the controller's brokers of this name are of another cluster.

        The controller looks at the name alone. Without this, a slave would copy another's log.
        """
        replicas = messages.replicas_of(await self._ask(messages.ask_replicas(name)), name)
        asked = request(RequestCode.GET_BROKER_CONFIG)
        for each in replicas:
            if each.is_alive and (answer := await self._peer(each.address, asked)) is not None:
                theirs = _property(answer.body, "brokerClusterName")
                if theirs and theirs != cluster:
                    raise StoreError(
                        f"brokerName={name} is of brokerClusterName={theirs} at this controller "
                        f"(broker {each.broker_id} at {each.address}); here it is {cluster}: set "
                        "the same, or use another brokerName"
                    )

    async def _check_alone(self, identity: Identity) -> None:
        """Raise if another broker with this number is there: one store is a copy of the other."""
        asked = request(RequestCode.GET_BROKER_RUNTIME_INFO)
        for each in await self._all_replicas(identity.name):
            is_other = each.broker_id == identity.broker_id and each.address != self._address
            if is_other and each.is_alive and await self._peer(each.address, asked) is not None:
                raise self._taken(identity, each.address)

    async def _all_replicas(self, name: str) -> list[messages.Replica]:
        found = messages.replicas_of(await self._ask(messages.ask_replicas(name)), name)
        self.replicas = {each.broker_id: each.address for each in found}
        return found

    def _taken(self, identity: Identity, address: str) -> StoreError:
        return StoreError(
            f"broker {identity.broker_id} of brokerName={identity.name} runs at {address}, and "
            f"this one at {self._address} has the same number in {PATH}: one store is a copy of "
            "the other; give this broker an empty store"
        )

    async def _peer(self, address: str, asked: Command) -> Command | None:
        """Ask another broker; None: it does not answer."""
        with contextlib.suppress(*ASKING_FAULTS):
            answer = await self._links.call(address, asked, _TIMEOUT)
            return answer if answer.code == ResponseCode.SUCCESS else None
        return None

    async def _elected(self, identity: Identity, before: Leadership) -> Leadership:
        """Have a master elected; return `before` when nobody can be."""
        answer = await self._ask(messages.elect(identity, now_ms()))
        return messages.leadership_of(answer) if messages.is_elected(answer) else before

    async def _ask(self, asked: Command) -> Command:
        """Ask the controller that leads.

        Raises:
            Unavailable, ValueError: when none answers.
        """
        leader = self._leader = self._leader or await self._find_leader()
        try:
            answer = await self._links.call(leader, asked, _TIMEOUT)
        except (Unavailable, FrameError):
            self._leader = ""
            raise
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = ""
            raise ValueError(f"controller {leader} leads no more")
        return answer

    async def _find_leader(self) -> str:
        trouble = ""
        for address in self._config.controller_addresses:
            try:
                answer = await self._links.call(address, messages.ask_leader(), _TIMEOUT)
                if leader := messages.leader_of(answer):
                    return leader
                trouble = trouble or f"{address} knows no leader"
            except ASKING_FAULTS as error:
                trouble = trouble or f"{address}: {error}"
        raise ValueError(trouble)

    async def _beat(self, controller: str, identity: Identity) -> None:
        """Send one heartbeat."""
        config = self._config
        beat = messages.heartbeat(
            identity,
            self._address,
            self.live(),
            config.controller_timeout_ms,
            config.election_priority,
        )
        with contextlib.suppress(*ASKING_FAULTS):  # a look says what is wrong
            await self._links.call(controller, beat, _TIMEOUT)

    async def _beat_forever(self, controller: str) -> None:
        """Send heartbeats to one controller: another one that is away delays none of them."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self.identity is not None:
                await self._beat(controller, self.identity)

    def hint(self) -> None:
        """Look at who the master is, soon: somebody says that it has changed."""
        self._hint.set()

    async def _look_forever(self) -> None:
        interval = self._config.leader_interval_ms / 1000
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):  # wait_for may swallow a cancellation
                    await self._hint.wait()
            self._hint.clear()
            try:
                async with self._one:
                    await self._look()
            except ASKING_FAULTS as error:
                self._tell(error)
                await asyncio.sleep(JOIN_SECONDS)

    async def _look(self) -> None:
        identity = self.identity
        if identity is None:
            return
        leadership = messages.leadership_of(await self._ask(messages.ask_leadership(identity.name)))
        if not leadership.master_id:
            leadership = await self._elected(identity, leadership)
        for each in await self._all_replicas(identity.name):
            if each.broker_id == identity.broker_id and each.address != self._address:
                self.on_taken(self._taken(identity, each.address))
        self._refuse_older(leadership)
        if self._told:
            self._told = ""
            broker_events.CONTROLLER_BACK.log(log, controller=self._leader)
        if leadership.master_id:
            self.leadership = leadership
            self.on_change(leadership)

    def _refuse_older(self, found: Leadership) -> None:
        """Raise if the controller knows less than this broker: an epoch has one master only.

        Raises:
            ValueError: then this broker goes on as before.
        """
        known = self.leadership
        newest = max(self._stored_epoch, known.epoch)
        is_other = found.epoch == known.epoch and known.master_id not in (0, found.master_id)
        if found.master_id and (found.epoch < newest or is_other):
            raise ValueError(
                f"controller {self._leader} says that broker {found.master_id} is the master in "
                f"epoch {found.epoch}, and this broker knows epoch {newest} already: the data of "
                "the controller are an old copy; elect a master until its epoch is higher"
            )

    async def alter(
        self, known: Leadership, wanted: frozenset[int]
    ) -> tuple[frozenset[int], int] | None:
        """Ask for another set of replicas in sync; return the set and its epoch; None: refused.

        Args:
            known: what the master knew when it began to wait for the new set. The controller
                refuses if its own set is a newer one.
            wanted: the set.

        Raises:
            Unavailable, ValueError: when it is not known whether the set was changed.
        """
        identity = self.identity
        if identity is None:
            return None
        async with self._one:
            asked = messages.alter_in_sync(identity, known, wanted, now_ms())
            answer = await self._ask(asked)
        if messages.is_refused(answer):
            self.hint()  # something has changed
            return None
        members, epoch = messages.in_sync_of(answer)
        self.leadership = self.leadership._replace(in_sync=members, in_sync_epoch=epoch)
        return members, epoch

    def _tell(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if reason != self._told:
            self._told = reason
            controllers = self._config.controllers
            broker_events.CONTROLLER_AWAY.log(log, controllers=controllers, reason=reason)

    async def close(self) -> None:
        """End the heartbeats, and close the connections: the controller elects another master."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._links.close()


def _property(text: bytes, name: str) -> str:
    """Return a property of a text of properties; "": it is not there."""
    begin = f"{name}="
    lines = text.decode(errors="replace").splitlines()
    return next((each[len(begin) :].strip() for each in lines if each.startswith(begin)), "")
