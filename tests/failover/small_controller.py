"""A controller for tests: it answers as Apache's does, and elects as Apache's does by default."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.runtime.listener import Listener
from reliable_mq.wire import fastjson
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, reply


class SmallController:
    """The brokers of one name.

    Attributes:
        is_away: whether it closes every connection without an answer.
        says: what it answers to each request instead, if that is set.
        takes_sets: whether it changes the set of replicas in sync.
        misses: whether a closed connection is a dead broker.
    """

    small_answers: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self._listener = Listener(self)
        self.addresses: dict[int, str] = {}
        self.codes: dict[int, str] = {}
        self.alive: dict[int, int] = {}  # connection of the heartbeats
        self.beats: dict[int, dict[str, str]] = {}
        self.master = 0
        self.epoch = 0
        self.in_sync: set[int] = set()
        self.in_sync_epoch = 0
        self.is_away = False
        self.says: Command | None = None
        self.takes_sets = True
        self.misses = True
        self.asked: list[int] = []
        self.asked_for: set[int] = set()  # numbers that were in a set that somebody wanted

    async def start(self) -> None:
        await self._listener.bind("127.0.0.1", 0)
        await self._listener.serve()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.port}"

    async def close(self) -> None:
        await self._listener.close()

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> None:
        for command in commands:
            self.asked.append(command.code)
            if self.is_away:
                self._listener.close_connection(connection.id)
                return
            answer = self._answer(connection, command)
            if self.says is not None:
                answer = reply(command, self.says.code, self.says.remark, self.says.ext_fields)
                answer.body = self.says.body
            self._listener.send(connection.id, [encode_answer(answer)])

    def received_known(self, connection: PeerConnection, command: Command) -> None:
        self.received(connection, (command,))

    def disconnected(self, connection: PeerConnection) -> None:
        """A closed connection is a dead broker; a dead master is replaced by one in sync."""
        gone = [number for number, at in self.alive.items() if at == connection.id]
        for number in gone:
            del self.alive[number]
            if number == self.master and self.misses:
                self.elect()

    def elect(self, wanted: int = 0) -> None:
        """Elect one that is alive and in sync; nobody if there is none."""
        fit = sorted(self.in_sync & self.alive.keys())
        if wanted and wanted not in fit:
            return
        if not wanted and self.master in fit:
            return
        self.master = wanted or (fit[0] if fit else 0)
        if self.master:
            self.epoch += 1
            self.in_sync = {self.master}
            self.in_sync_epoch += 1

    def _leadership(self, command: Command, code: int = Code.SUCCESS) -> Command:
        ext = {"masterEpoch": str(self.epoch), "syncStateSetEpoch": str(self.in_sync_epoch)}
        if self.master:
            at = self.addresses[self.master]
            ext |= {"masterBrokerId": str(self.master), "masterAddress": at}
        members = {"syncStateSet": sorted(self.in_sync), "syncStateSetEpoch": self.in_sync_epoch}
        return reply(command, code, None, ext, fastjson.dumps(members))

    def _answer(self, connection: PeerConnection, command: Command) -> Command:
        fields = command.ext_fields
        number = int(fields.get("brokerId", 0))
        match command.code:
            case Ask.CONTROLLER_GET_METADATA_INFO:
                return reply(command, ext={"controllerLeaderAddress": self.address})
            case Ask.CONTROLLER_GET_NEXT_BROKER_ID:
                return reply(command, ext={"nextBrokerId": str(len(self.codes) + 1)})
            case Ask.CONTROLLER_APPLY_BROKER_ID:
                number, code = int(fields["appliedBrokerId"]), fields["registerCheckCode"]
                is_free = self.codes.setdefault(number, code) == code
                return reply(
                    command, Code.SUCCESS if is_free else Code.CONTROLLER_BROKER_ID_INVALID
                )
            case Ask.CONTROLLER_REGISTER_BROKER:
                self.addresses[number] = fields["brokerAddress"]
                return self._leadership(command)
            case Ask.BROKER_HEARTBEAT:
                self.alive[number], self.beats[number] = connection.id, dict(fields)
                return reply(command)
            case Ask.CONTROLLER_ELECT_MASTER:
                if not self.epoch:
                    self.in_sync = {number}
                self.elect()
                failed = 0 if self.master else Code.CONTROLLER_ELECT_MASTER_FAILED
                return self._leadership(command, failed)
            case Ask.CONTROLLER_GET_REPLICA_INFO:
                return self._leadership(command)
            case Ask.CONTROLLER_ALTER_SYNC_STATE_SET:
                return self._alter(command)
            case Ask.CONTROLLER_GET_SYNC_STATE_DATA:
                rows = [
                    {"brokerId": each, "brokerAddress": at, "alive": each in self.alive}
                    for each, at in self.addresses.items()
                ]
                table = {name: {"inSyncReplicas": rows} for name in fastjson.loads(command.body)}
                return reply(command, body=fastjson.dumps({"replicasInfoTable": table}))
        return reply(command, Code.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def _alter(self, command: Command) -> Command:
        wanted, fields = fastjson.loads(command.body), command.ext_fields
        self.asked_for.update(wanted["syncStateSet"])
        is_current = (int(fields["masterBrokerId"]), int(fields["masterEpoch"])) == (
            self.master,
            self.epoch,
        ) and wanted["syncStateSetEpoch"] == self.in_sync_epoch
        if not is_current or not self.takes_sets:
            return reply(command, 2013, "refused")
        self.in_sync, self.in_sync_epoch = set(wanted["syncStateSet"]), self.in_sync_epoch + 1
        return self._leadership(command)


@asynccontextmanager
async def small_controller() -> AsyncIterator[SmallController]:
    controller = SmallController()
    await controller.start()
    try:
        yield controller
    finally:
        await controller.close()
