"""The headers of requests, judged once for requests that say the same. Pure.

A client sends the same headers with each call, but for the number of the call and the time that is
left to it. So what the others say is kept for each path, and only compared with the next request's.
"""

import re
from typing import NamedTuple

from reliable_mq.errors import InvariantBroken
from reliable_mq.gateway.header_rules import why_malformed
from reliable_mq.gateway.hpack import Headers

TIMEOUT = b"grpc-timeout"
_CHANGING = (b"x-mq-request-id", TIMEOUT)
_KEPT_SIZE_MAX = 4096  # of what is kept for a silent connection: bytes of names and values, and
_EACH_SIZE = 16  # so much for each header
_is_plain = re.compile(rb"[!-~]+").fullmatch


class RequestHead:
    """What the headers of a request say, whatever the values of those that change are.

    `why`: why they are malformed; "": they are not.
    """

    __slots__ = ("context", "timeout_at", "values", "why")

    def __init__(self, headers: Headers) -> None:
        self.why = why_malformed(headers)
        self.values = dict(headers)
        places = [at for at, (name, _) in enumerate(headers) if name == TIMEOUT]
        self.timeout_at = places[-1] if places else None
        self.context: object = None
        """The owner's: for all requests with this head."""

    def timeout(self, headers: Headers) -> bytes | None:
        """Return the time that is left to a request with this head and these headers."""
        return None if self.timeout_at is None else headers[self.timeout_at][1]


class _Kept(NamedTuple):
    """A head, and how to know the headers that have it: some runs are equal, some may change."""

    head: RequestHead
    number: int  # of headers
    size: int
    runs: list[tuple[int, int, Headers]]
    changing: list[tuple[int, bytes]]

    def is_of(self, headers: Headers) -> bool:
        """Whether headers have this head."""
        if len(headers) != self.number:
            return False
        for begin, end, run in self.runs:
            if headers[begin:end] != run:
                return False
        for at, name in self.changing:
            found, value = headers[at]
            if found != name or not _is_plain(value):
                return False
        return True


class RequestHeads:
    """The heads of one connection's requests.

    Invariant: a kept head is that of the headers beside it, whatever plain values change in them.
    `_size` is that of all headers that are kept, and at most `_KEPT_SIZE_MAX`.
    """

    __slots__ = ("_kept", "_path_at", "_size")

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, bytes], _Kept] = {}  # by the path
        self._path_at = 0  # of the last request
        self._size = 0

    def of(self, headers: Headers) -> RequestHead:
        """Return the head of a request's headers."""
        if self._path_at < len(headers):
            kept = self._kept.get(headers[self._path_at])
            if kept is not None and kept.is_of(headers):
                return kept.head
        head = RequestHead(headers)
        if not head.why:
            self._keep(head, headers)
        return head

    def _keep(self, head: RequestHead, headers: Headers) -> None:
        names = [name for name, _ in headers]
        size = sum(len(name) + len(value) + _EACH_SIZE for name, value in headers)
        if size > _KEPT_SIZE_MAX:
            return
        self._path_at = names.index(b":path")
        former = self._kept.pop(headers[self._path_at], None)
        self._size += size - (former.size if former is not None else 0)
        if self._size > _KEPT_SIZE_MAX:
            self._kept.clear()
            self._size = size
        runs, begin = [], 0
        changing = [(at, name) for at, name in enumerate(names) if name in _CHANGING]
        for at in (*(at for at, _ in changing), len(headers)):
            if begin < at:
                runs.append((begin, at, headers[begin:at]))
            begin = at + 1
        self._kept[headers[self._path_at]] = _Kept(head, len(headers), size, runs, changing)

    def invariants(self) -> None:
        """Check the size of what is kept.

        Raises:
            InvariantBroken: when it is another one, or too large.
        """
        size = sum(each.size for each in self._kept.values())
        if size != self._size or size > _KEPT_SIZE_MAX:
            raise InvariantBroken(f"the heads have {size} bytes, not {self._size}")
