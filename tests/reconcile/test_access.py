"""A closed cluster is read by the account and over the encryption that the environment names."""

import pickle
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest
import trustme

from reliable_mq.errors import ConnectionLost
from reliable_mq.reconcile.brokers.spark_access import OPEN, ClusterAccess, access_here
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_command, encode_command, request
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.request_signature import SIGNATURE


class Server:
    """Answers one encrypted connection, and keeps what it was asked."""

    def __init__(self, authority: trustme.CA) -> None:
        self.asked: list[Command] = []
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        self._listening = create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        frames = FrameReader()
        plain, _ = self._listening.accept()
        try:
            with self._tls.wrap_socket(plain, server_side=True) as connection:
                while data := connection.recv(65536):
                    for frame in frames.feed(data):
                        self.asked.append(decode_command(frame))
                        answer = Command(0, opaque=self.asked[-1].opaque, flag=1)
                        connection.sendall(encode_command(answer))
        except OSError:
            plain.close()

    def close(self) -> None:
        self._thread.join(30)
        self._listening.close()


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("RELIABLE_MQ_ACCESS_KEY", "root")
    monkeypatch.setenv("RELIABLE_MQ_SECRET_KEY", "a secret")
    monkeypatch.setenv("RELIABLE_MQ_TLS_CA", str(tmp_path / "ca.pem"))
    server = Server(authority)
    yield server
    server.close()


def test_requests_are_signed_and_connections_encrypted_also_in_a_worker(closed: Server) -> None:
    access = pickle.loads(pickle.dumps(access_here()))

    with access.link(closed.address, 30.0) as link:
        link.call(request(RequestCode.GET_BROKER_CLUSTER_INFO))

    assert closed.asked[0].ext_fields[SIGNATURE]
    assert "a secret" not in repr(access)


def test_who_cannot_prove_itself_is_not_asked(
    closed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_TLS_HOSTNAME", "another.example")

    with access_here().link(closed.address, 30.0) as link, pytest.raises(ConnectionLost):
        link.call(request(RequestCode.GET_BROKER_CLUSTER_INFO))

    assert closed.asked == []


def test_without_an_account_a_cluster_is_open() -> None:
    assert access_here() == OPEN == ClusterAccess()
