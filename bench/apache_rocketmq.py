"""Apache RocketMQ's own name server and broker, on free loopback ports with their own store.

Apache's defaults are kept except addresses, paths and the flush type. The JVM flags are those of
its `runbroker.sh` with a heap of 2 GiB instead of 8, unless others are given.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from bench.child_process import LoggedProcess, port_beside
from bench.java_programs import SERVER_JARS, build_server, java_command
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

START_SECONDS = 240
POLL_SECONDS = 0.05
NAME_SERVER_FLAGS = ("-server", "-Xms256m", "-Xmx256m")
OPEN_PACKAGES = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
BROKER_FLAGS = (
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:MaxDirectMemorySize=4g",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:+AlwaysPreTouch",
    *OPEN_PACKAGES,
)
SMALL_BROKER_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *OPEN_PACKAGES)
"""For tests that ask what a broker does, not how fast: two fit beside everything else."""
SMALL_NAME_SERVER_FLAGS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Those of the name server beside such a broker."""
_AUTH = "org.apache.rocketmq.auth"
AUTH_PROVIDERS = {
    f"{what}Provider": f"{_AUTH}.{kind}.provider.{name}Provider"
    for what, kind, name in (
        ("authentication", "authentication", "DefaultAuthentication"),
        ("authenticationMetadata", "authentication", "LocalAuthenticationMetadata"),
        ("authorization", "authorization", "DefaultAuthorization"),
        ("authorizationMetadata", "authorization", "LocalAuthorizationMetadata"),
    )
}
"""What a broker with access control needs, too."""


class ApacheRocketMQ:
    """One name server and one master broker of Apache's. A context manager.

    Args:
        directory: an empty directory; ROCKETMQ_HOME, the store and the logs go there.
        flush_disk_type: SYNC_FLUSH or ASYNC_FLUSH.
        settings: further properties of the broker.
        name_servers: "host:port;…" of other name servers; then none is started.
        flags: of the broker's JVM.
        system: system properties of both JVMs, such as "-Dtls.server.mode=enforcing".
        link: opens a connection to the name server.
    """

    label = "Apache RocketMQ 5.4.0"

    def __init__(
        self,
        directory: Path,
        flush_disk_type: str,
        settings: Mapping[str, str] | None = None,
        name_servers: str = "",
        flags: tuple[str, ...] = BROKER_FLAGS,
        system: tuple[str, ...] = (),
        link: Callable[[str, float], BlockingLink] = BlockingLink,
    ) -> None:
        self.directory = directory
        self.flush_disk_type = flush_disk_type
        self.name_server_address = name_servers or f"127.0.0.1:{free_port()}"
        self.name_server: LoggedProcess | None = None
        self.broker: LoggedProcess
        self.settings = dict(settings or {})
        self._has_name_server = not name_servers
        self._flags = flags
        self._system, self._link = system, link
        self._started: list[LoggedProcess] = []
        self.address = f"127.0.0.1:{port_beside(-2)}"
        self._ha_port = str(free_port())

    def start(self) -> None:
        """Start both; returns when both say that they have booted."""
        build_server()
        try:
            self._start_both()
        except BaseException:
            self.stop()
            raise

    def _start_both(self) -> None:
        (self.directory / "conf").mkdir(parents=True, exist_ok=True)
        is_small = self._flags == SMALL_BROKER_FLAGS
        if self._has_name_server:
            self.name_server = self._start(
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                SMALL_NAME_SERVER_FLAGS if is_small else NAME_SERVER_FLAGS,
                "namesrv",
                {
                    "listenPort": self.name_server_address.rpartition(":")[2],
                    "kvConfigPath": str(self.directory / "kvConfig.json"),
                },
            )
            self.name_server.wait_for(r"boot success", START_SECONDS)
        self.start_broker()

    def start_broker(self) -> None:
        """Start the broker, the first time or again after its end, on the same port and store."""
        self.broker = self._start(
            "org.apache.rocketmq.broker.BrokerStartup",
            self._flags,
            "broker",
            self._broker_settings(),
        )
        self.broker.wait_for(r"boot success", START_SECONDS)
        self._wait_until_registered()

    def _broker_settings(self) -> dict[str, str]:
        store = self.directory / "store"
        return {
            "listenPort": self.address.rpartition(":")[2],
            "haListenPort": self._ha_port,
            "namesrvAddr": self.name_server_address,
            "brokerIP1": "127.0.0.1",
            "brokerName": "apache",
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "flushDiskType": self.flush_disk_type,
            **self.settings,
        }

    def _wait_until_registered(self) -> None:
        """Return when a name server knows the broker: it has booted a moment before."""
        asked = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
        port = self.address[self.address.rindex(":") :].encode() + b'"'
        deadline = time.monotonic() + START_SECONDS
        with self._link(self.name_server_address.partition(";")[0], 10) as link:
            while port not in link.call(asked).body:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no name server knows {self.address}")
                time.sleep(POLL_SECONDS)

    def _start(
        self,
        main_class: str,
        flags: tuple[str, ...],
        name: str,
        settings: dict[str, str],
        jars: Path = SERVER_JARS,
        words: tuple[str, ...] = ("-c",),
    ) -> LoggedProcess:
        """Start a server; `words` come before the path of its file of settings."""
        conf = self.directory / "conf" / f"{name}.conf"
        lines = {"bindAddress": "127.0.0.1", **settings}
        conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        command = java_command(
            main_class,
            class_path=f"{jars}/*",
            home=self.directory,
            flags=flags + self._system,
        )
        server = LoggedProcess(
            [*command, *words, str(conf)],
            self.directory / f"{name}.log",
            environment={
                "ROCKETMQ_HOME": str(self.directory),
                "RMQ_PROXY_HOME": str(self.directory),
            },
        )
        self._started.append(server)
        return server

    @property
    def pids(self) -> list[int]:
        """The process ids of both, while they run."""
        servers = [self.broker, *([self.name_server] if self.name_server else [])]
        return [server.child.pid for server in servers]

    def stop(self) -> None:
        while self._started:
            self._started.pop().stop()

    def kill(self) -> None:
        """End both at once, where nobody reads their files afterwards: `stop` takes 20 s."""
        while self._started:
            self._started.pop().kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
