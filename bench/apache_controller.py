"""Apache RocketMQ's own controller, in its name server's process, on free loopback ports."""

from pathlib import Path
from typing import Self

from bench.apache_rocketmq import NAME_SERVER_FLAGS, START_SECONDS
from bench.child_process import LoggedProcess
from bench.java_programs import SERVER_JARS, build_server, java_command
from reliable_mq.testing.local_servers import free_port


class ApacheController:
    """One name server and one controller of Apache's, in one process. A context manager.

    Args:
        directory: ROCKETMQ_HOME, the store and the logs go there.
        settings: further properties of the controller.
    """

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.name_server_address = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.settings = settings
        self.starts = 0
        self.process: LoggedProcess

    @property
    def properties(self) -> dict[str, str]:
        """What a broker under this controller is told."""
        return {"enableControllerMode": "true", "controllerAddr": self.address}

    def start(self) -> None:
        """Start it, the first time or again; returns when it says that it has booted."""
        build_server()
        (self.directory / "conf").mkdir(parents=True, exist_ok=True)
        conf = self.directory / "conf" / "namesrv.conf"
        lines = {
            "bindAddress": "127.0.0.1",
            "listenPort": self.name_server_address.rpartition(":")[2],
            "kvConfigPath": str(self.directory / "kvConfig.json"),
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.directory / "controller"),
            "mappedFileSize": str(4 * 1024 * 1024),
            **self.settings,
        }
        conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        command = java_command(
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            class_path=f"{SERVER_JARS}/*",
            home=self.directory,
            flags=NAME_SERVER_FLAGS,
        )
        self.starts += 1
        self.process = LoggedProcess(
            [*command, "-c", str(conf)],
            self.directory / f"controller-{self.starts}.log",
            environment={"ROCKETMQ_HOME": str(self.directory)},
        )
        self.process.wait_for(r"ControllerManager boot success", START_SECONDS)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
