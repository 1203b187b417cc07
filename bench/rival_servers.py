"""What the rival clients of `client_rivals` need: their packages, and the servers they talk to."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

from bench.apache_rocketmq import BROKER_FLAGS, ApacheRocketMQ
from bench.child_process import ChildError, LoggedProcess
from bench.java_programs import PROXY_JARS, build_proxy, java_command
from reliable_mq.testing.local_servers import free_port

RIVALS = ("rocketmq-python-client==5.1.2", "nats-py==2.16.0", "uvloop>=0.19")
ENVIRONMENT = Path(__file__).parent.parent / ".venv-rivals"
START_SECONDS = 60
INSTALL_SECONDS = 600
PROXY_FLAGS = ("-server", "-Xms512m", "-Xmx1g", "-XX:+UseG1GC")
PROXY_OPENS = ("--add-opens=java.base/java.nio=ALL-UNNAMED",)


def rival_python() -> str:
    """Return the interpreter that has the rivals' packages; make its environment the first time.

    Raises:
        ChildError: when they cannot be installed.
    """
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "installed"
    if not stamp.exists() or stamp.read_text() != " ".join(RIVALS):
        _run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
        _run([str(python), "-m", "pip", "install", "--quiet", *RIVALS])
        stamp.write_text(" ".join(RIVALS))
    return str(python)


def _run(command: list[str]) -> None:
    reply = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if reply.returncode:
        raise ChildError(f"{command}: exit code {reply.returncode}:\n{reply.stderr[-2000:]}")


def missing_nats() -> str | None:
    """Return what keeps NATS from running, as one sentence, or None."""
    found = shutil.which("nats-server")
    return None if found else "not installed: nats-server (apt-get install nats-server)"


class NatsServer:
    """NATS with JetStream, its streams in files, nothing else changed. A context manager.

    Args:
        directory: an empty directory for its streams and its log.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        directory = str(self._directory)
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(self.port)]
        command += ["--jetstream", "--store_dir", directory]
        self.process = LoggedProcess(command, self._directory / "nats.log")
        self.process.wait_for(r"Server is ready", START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    @property
    def pids(self) -> list[int]:
        return [self.process.child.pid]


class ApacheProxy:
    """Apache's gRPC proxy before a running cluster. A context manager.

    It listens on all addresses: it has no setting for that.

    Args:
        directory: an empty directory for its configuration and logs.
        name_servers: "host:port;…" of the cluster's name servers.
    """

    def __init__(self, directory: Path, name_servers: str) -> None:
        self._directory = directory
        self._name_servers = name_servers
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        build_proxy()
        settings = {
            "proxyMode": "CLUSTER",
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self._name_servers,
            "grpcServerPort": self.port,
            "remotingListenPort": free_port(),
        }
        configuration = self._directory / "conf" / "rmq-proxy.json"
        configuration.parent.mkdir(parents=True)
        configuration.write_text(json.dumps(settings))
        command = java_command(
            "org.apache.rocketmq.proxy.ProxyStartup",
            class_path=f"{PROXY_JARS}/*",
            home=self._directory,
            flags=(*PROXY_FLAGS, *PROXY_OPENS),
        )
        home = {"RMQ_PROXY_HOME": str(self._directory), "ROCKETMQ_HOME": str(self._directory)}
        self.process = LoggedProcess(
            [*command, "-pc", str(configuration)], self._directory / "proxy.log", environment=home
        )
        try:
            self.process.wait_for(r"startup success", START_SECONDS)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    @property
    def pids(self) -> list[int]:
        return [self.process.child.pid]


class ApacheInOne(ApacheRocketMQ):
    """Apache's broker and gRPC proxy in one process, its proxy's mode LOCAL. A context manager.

    Its endpoint, `endpoint`, listens on all addresses.
    """

    label = "Apache RocketMQ 5.4.0, one process"

    def start_broker(self) -> None:
        """Start both; the proxy says when it is ready."""
        build_proxy()
        port = free_port()
        self.endpoint = f"127.0.0.1:{port}"
        settings = {
            "proxyMode": "LOCAL",
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self.name_server_address,
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
        }
        proxy = self.directory / "conf" / "rmq-proxy.json"
        proxy.write_text(json.dumps(settings))
        self.broker = self._start(
            "org.apache.rocketmq.proxy.ProxyStartup",
            (*BROKER_FLAGS, *PROXY_OPENS),
            "broker",
            self._broker_settings(),
            PROXY_JARS,
            ("-pc", str(proxy), "-bc"),
        )
        self.broker.wait_for(r"startup success", START_SECONDS)
        self._wait_until_registered()
