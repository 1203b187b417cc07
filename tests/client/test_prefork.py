"""Gunicorn and Celery as people run them: the application is loaded, then workers are forked."""

import contextlib
import http.client
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from bench.child_process import ChildError, LoggedProcess
from tests.client.servers import Servers
from tests.waiting import SECONDS_MAX, until

from reliable_mq.wire.codes import RequestCode

pytestmark = pytest.mark.processes

PATH = os.pathsep.join(filter(None, sys.path))


class Unix(http.client.HTTPConnection):
    """HTTP over the socket of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS_MAX)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS_MAX)
        self.sock.connect(str(self._path))


def asked(path: Path, what: str) -> tuple[int, str]:
    """Return the process id of the worker that answered, and its text."""
    connection = Unix(path)
    connection.request("GET", what)
    pid, _, text = connection.getresponse().read().decode().partition(" ")
    connection.close()
    return int(pid), text


def beats(servers: Servers) -> int:
    """Return how many heartbeats came over the first connection: the parent's."""
    return servers.broker.asked[0].count(RequestCode.HEART_BEAT)


def goes_on(servers: Servers) -> bool:
    """Wait for another heartbeat of the parent, over the connection it has always had."""
    before = beats(servers)
    until(lambda: beats(servers) >= before + 2)
    return servers.broker.is_open[0]


def test_workers_of_gunicorn_send_by_clients_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "shop.socket"
    with Servers() as servers:
        gunicorn = LoggedProcess(
            [
                *(sys.executable, "-m", "gunicorn", "--bind", f"unix:{path}"),
                *("--config", "python:tests.client.gunicorn_shop"),
                *("--worker-tmp-dir", str(tmp_path)),
                "tests.client.gunicorn_shop:application",
            ],
            tmp_path / "gunicorn.log",
            environment={"SHOP_BROKER": servers.address, "PYTHONPATH": PATH},
        )
        try:
            gunicorn.wait_for("Booting worker", SECONDS_MAX)
            worker, text = asked(path, "/")
            assert text == "stored in t"
            assert asked(path, "/inherited")[1].startswith(
                f"ForkedClient: this client was started in process {gunicorn.child.pid} and is used"
                f" in {worker}: make"
            )
            os.kill(worker, signal.SIGTERM)
            until(lambda: asked(path, "/")[0] != worker, gunicorn.output)
            assert goes_on(servers), "the worker took nothing of the parent's with it"
            assert servers.broker.bodies.count(b"before the fork") == 1
            gunicorn.stop()
        finally:
            gunicorn.kill()


def test_workers_of_celery_send_by_clients_of_their_own(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    with Servers() as servers:
        celery = LoggedProcess(
            [
                *(sys.executable, "-m", "celery", "--app", "tests.client.celery_shop", "worker"),
                *("--pool", "prefork", "--concurrency", "1", "--loglevel", "INFO"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            tmp_path / "celery.log",
            environment={
                "SHOP_BROKER": servers.address,
                "SHOP_TASKS": str(tasks),
                "PYTHONPATH": PATH,
            },
        )
        try:
            until(lambda: len(servers.broker.bodies) >= 5, celery.output)  # each ends its worker
            before, *rest = servers.broker.bodies
            assert before == b"before the fork"
            orders = [body for body in rest if body.startswith(b"order")]
            refusals = {body for body in rest if not body.startswith(b"order")}
            assert sorted(orders) == [b"order 1", b"order 2"], "tasks of one millisecond"
            words = f"this client was started in process {celery.child.pid} and is used in "
            assert len(refusals) == 2, "two workers, one after the other"
            assert all(body.startswith(words.encode()) for body in refusals)
            assert goes_on(servers), "the workers took nothing of the parent's with them"
            until(lambda: celery.output().count("a worker has begun") == 3, celery.output)
            # billiard may wait for ever for a worker that it is just making, in the place of one
            # that ended: how Celery itself ends is not what is asked here.
            with contextlib.suppress(ChildError):
                celery.stop()
        finally:
            celery.kill()
