"""The folders of runs on any file system of Spark's Hadoop; see `run_folder`.

Receives a session and a URI, such as `s3a://bucket/reports` or `hdfs:///reports`. Credentials and
connectors are settings of Spark. Such file systems have no locks and no links. So a folder counts
as that of a killed run if nothing was written in it for a day. `latest.json` is a copy of the
newest summary, which names the files. In object stores a rename is not atomic, but the new object
still appears under its name in one step.
"""

import os
import socket
import time
from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import SparkSession

from reliable_mq.reconcile.runs.run_folder import (
    LATEST,
    OWNER,
    SUMMARY,
    Known,
    folder_of,
    run_in,
    too_many,
)

STALE_SECONDS = 86_400.0


class HadoopFiles:
    """The file operations that a run needs. Texts are UTF-8."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._conf: Any = spark._jsc.hadoopConfiguration()

    def write(self, uri: str, text: str) -> None:
        """Write a file completely or not at all. It replaces an existing one."""
        folder, _, name = uri.rpartition("/")
        hidden = self._path(f"{folder}/.{name}.{os.getpid()}")
        stream = self._system(hidden).create(hidden, True)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()
        self._replace(hidden, self._path(uri))

    def _replace(self, source: Any, target: Any) -> None:
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        how = self._gateway.new_array(rename, 1)
        how[0] = rename.valueOf("OVERWRITE")
        context = self._jvm.org.apache.hadoop.fs.FileContext
        context.getFileContext(target.toUri(), self._conf).rename(source, target, how)

    def make_folder(self, uri: str) -> None:
        """Create a folder and its parents."""
        path = self._path(uri)
        self._system(path).mkdirs(path)

    def exists(self, uri: str) -> bool:
        path = self._path(uri)
        return bool(self._system(path).exists(path))

    def remove(self, uri: str) -> None:
        """Remove a file, or a folder with all its files. It need not exist."""
        path = self._path(uri)
        self._system(path).delete(path, True)

    def folders(self, uri: str) -> list[str]:
        """Return the names of the folders in a folder, or none if it does not exist."""
        path = self._path(uri)
        system = self._system(path)
        if not system.exists(path):
            return []
        return sorted(
            each.getPath().getName() for each in system.listStatus(path) if each.isDirectory()
        )

    def changed(self, uri: str) -> float:
        """Return when a file in a folder was last written, in seconds since the epoch."""
        path = self._path(uri)
        system = self._system(path)
        newest = system.getFileStatus(path).getModificationTime()
        files = system.listFiles(path, True)
        while files.hasNext():
            newest = max(newest, files.next().getModificationTime())
        return float(newest) / 1000

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)

    def _system(self, path: Any) -> Any:
        return path.getFileSystem(self._conf)


class HadoopRunFolder:
    """The folder of one run."""

    def __init__(self, files: HadoopFiles, out: str, run_id: str) -> None:
        self._files = files
        self._out = out
        self._uri = f"{out}/{folder_of(run_id)}"
        self._summary = ""
        files.make_folder(self._uri)
        self.write(OWNER, f"{socket.gethostname()} process {os.getpid()}\n")

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def place(self) -> str:
        return self._uri

    def write(self, name: str, text: str) -> None:
        self._files.write(f"{self._uri}/{name}", text)
        if name == SUMMARY:
            self._summary = text

    def publish(self) -> None:
        self._files.write(f"{self._out}/{LATEST}", self._summary)
        self._files.remove(f"{self._uri}/{OWNER}")

    def remove(self) -> None:
        _remove(self._files, self._uri)


def _remove(files: HadoopFiles, uri: str) -> None:
    """Remove a run's folder. The summary goes first, because it marks the folder as complete."""
    files.remove(f"{uri}/{SUMMARY}")
    files.remove(uri)


class HadoopRunFolders:
    """The folders of all runs at one URI."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._files = HadoopFiles(spark)
        self._out = uri.rstrip("/")

    def begin(self, run_id: str) -> HadoopRunFolder:
        """Create the folder of a run."""
        return HadoopRunFolder(self._files, self._out, run_id)

    def sweep(self, known: Known) -> list[str]:
        now = time.time()
        dead = {
            run_id: uri
            for run_id, uri in self._folders()
            if not self._has_ended(uri) and now - self._files.changed(uri) > STALE_SECONDS
        }
        kept = known(dead) if dead else ()
        for run_id, uri in dead.items():
            if run_id in kept:
                self._files.remove(f"{uri}/{OWNER}")
            else:
                _remove(self._files, uri)
        return [run_id for run_id in dead if run_id not in kept]

    def remove_except_newest(self, number: int, needed: Collection[str]) -> list[str]:
        ended = {run_id: uri for run_id, uri in self._folders() if self._has_ended(uri)}
        removed = too_many(ended, number, needed)
        for run_id in removed:
            _remove(self._files, ended[run_id])
        return removed

    def _folders(self) -> Iterator[tuple[str, str]]:
        for name in self._files.folders(self._out):
            run_id = run_in(name)
            if run_id is not None:
                yield run_id, f"{self._out}/{name}"

    def _has_ended(self, uri: str) -> bool:
        has_owner = self._files.exists(f"{uri}/{OWNER}")
        return not has_owner and self._files.exists(f"{uri}/{SUMMARY}")
