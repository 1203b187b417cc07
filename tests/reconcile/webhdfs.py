"""A file system that is no disk of this machine's: WebHDFS over a folder, for Hadoop's own client.

It has what object stores have and disks have not: every step is a request of its own, there are no
locks and no links, and times are the server's. It speaks as much of the protocol as runs need.

Source: Apache Hadoop, "WebHDFS REST API".
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from reliable_mq.wire import fastjson

PREFIX = "/webhdfs/v1"
_BLOCK_SIZE = 128 * 1024 * 1024
_DEFAULTS = {
    "blockSize": _BLOCK_SIZE,
    "bytesPerChecksum": 512,
    "checksumType": 2,
    "defaultStoragePolicyId": 7,
    "encryptDataTransfer": False,
    "fileBufferSize": 4096,
    "keyProviderUri": "",
    "replication": 1,
    "trashInterval": 0,
    "writePacketSize": 65536,
}


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    root: Path

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - as the library wants them named

    def _answer(self) -> None:
        url = urlsplit(self.path)
        self.asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.name = unquote(url.path).removeprefix(PREFIX)
        self.file = self._file(self.name)
        body = self._body()
        operation = getattr(self, f"_{self.asked['op'].lower()}", None)
        if operation is None:
            self.name = f"{self.asked['op']} {self.name}"
            self._refuse(400, "UnsupportedOperationException", "java.lang.")
            return
        try:
            operation(body)
        except FileNotFoundError:
            self._refuse(404, "FileNotFoundException", "java.io.")

    def _file(self, name: str) -> Path:
        return self.root / name.strip("/")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _tell(self, answer: dict[str, Any], code: int = 200) -> None:
        # Without its type: the client in Spark's jars has left out what would parse it.
        self._reply(code, fastjson.dumps(answer))

    def _refuse(self, code: int, what: str, package: str) -> None:
        told = {"exception": what, "javaClassName": f"{package}{what}", "message": self.name}
        self._tell({"RemoteException": told}, code)

    def _is_redirected(self) -> bool:
        """Send a client to where the data are, as a name node does; return whether it was."""
        if "datanode" in self.asked:
            return False
        self._reply(307, Location=f"http://{self.headers['Host']}{self.path}&datanode=true")
        return True

    def _getserverdefaults(self, _: bytes) -> None:
        self._tell({"FsServerDefaults": _DEFAULTS})

    def _getfilestatus(self, _: bytes) -> None:
        self._tell({"FileStatus": _status(self.file, "")})

    def _getfilelinkstatus(self, _: bytes) -> None:
        self._tell({"FileStatus": _status(self.file, "")})

    def _gethomedirectory(self, _: bytes) -> None:
        self._tell({"Path": "/user/tests"})

    def _liststatus(self, _: bytes) -> None:
        if self.file.is_file():
            found = [_status(self.file, "")]
        else:
            found = [_status(each, each.name) for each in sorted(self.file.iterdir())]
        self._tell({"FileStatuses": {"FileStatus": found}})

    def _getfileblocklocations(self, _: bytes) -> None:
        self._tell({"BlockLocations": {"BlockLocation": []}})

    def _mkdirs(self, _: bytes) -> None:
        self.file.mkdir(parents=True, exist_ok=True)
        self._tell({"boolean": True})

    def _create(self, body: bytes) -> None:
        if not self._is_redirected():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_bytes(body)
            self._reply(201, Location=f"webhdfs://{self.headers['Host']}{self.name}")

    def _open(self, _: bytes) -> None:
        if not self._is_redirected():
            data = self.file.read_bytes()[int(self.asked.get("offset", 0)) :]
            length = self.asked.get("length")
            self._reply(200, data[: int(length)] if length else data)

    def _rename(self, _: bytes) -> None:
        target = self._file(self.asked["destination"])
        is_free = not target.exists() or self.asked.get("renameoptions") == "OVERWRITE"
        if is_free:
            self.file.replace(target)
        self._tell({"boolean": is_free} if "renameoptions" not in self.asked else {})

    def _delete(self, _: bytes) -> None:
        was_there = self.file.exists()
        if self.file.is_dir():
            shutil.rmtree(self.file)
        elif was_there:
            self.file.unlink()
        self._tell({"boolean": was_there})


def _status(path: Path, suffix: str) -> dict[str, Any]:
    told = path.stat()
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    changed = int(told.st_mtime * 1000)
    return {
        "accessTime": changed,
        "blockSize": _BLOCK_SIZE,
        "childrenNum": 0,
        "fileId": told.st_ino,
        "group": "tests",
        "length": 0 if kind == "DIRECTORY" else told.st_size,
        "modificationTime": changed,
        "owner": "tests",
        "pathSuffix": suffix,
        "permission": "755",
        "replication": 1,
        "storagePolicy": 0,
        "type": kind,
    }


@contextmanager
def webhdfs(root: Path) -> Iterator[str]:
    """Serve a folder; give its URI."""
    handler = type("Requests", (_Requests,), {"root": root})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"webhdfs://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
