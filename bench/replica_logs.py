"""Where the logs of a master and its slave end, and how their files differ.

Receives addresses and store folders. Looks at brokers that run, and at files that nobody writes to.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from reliable_mq.errors import ReliableMQError
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

_PART = 1024 * 1024


class Copied(NamedTuple):
    """How a slave's log stands to its master's, in bytes."""

    compared: int
    lacking: int
    different: int


def log_end(address: str) -> int:
    """Return where a broker's log ends, by its own account; -1: it does not answer."""
    with contextlib.suppress(ReliableMQError), BlockingLink(address, 10) as link:
        body = link.call(request(RequestCode.GET_BROKER_RUNTIME_INFO)).body
        table = msgspec.json.decode(body, type=dict[str, dict[str, str]])["table"]
        return int(table["commitLogMaxOffset"])
    return -1


def compare(master: Path, slave: Path, end: int, slave_end: int) -> Copied:
    """Compare two logs by their files, from where both have bytes up to their ends."""
    begin = max(_begin(master), _begin(slave))
    both = min(end, slave_end)
    different = sum(
        sum(ours != theirs for ours, theirs in zip(own, copy, strict=True)) if own != copy else 0
        for own, copy in zip(_parts(master, begin, both), _parts(slave, begin, both), strict=True)
    )
    surplus = max(0, slave_end - end)
    return Copied(max(0, both - begin), max(0, end - slave_end), different + surplus)


def _begin(store: Path) -> int:
    return min((int(each.name) for each in (store / "commitlog").iterdir()), default=0)


def _parts(store: Path, begin: int, end: int) -> Iterator[bytes]:
    files = sorted((store / "commitlog").iterdir())
    for file in files:
        first, size = int(file.name), file.stat().st_size
        at = max(begin, first)
        with file.open("rb") as opened:
            while at < min(end, first + size):
                opened.seek(at - first)
                part = opened.read(min(_PART, min(end, first + size) - at))
                yield part
                at += len(part)
