"""Compressed headers of HTTP/2, both ways. Pure.

Receives header blocks of a peer, returns names and values as bytes. It writes only what needs no
table of the peer: literals. Names and values of a block are bounded together, also where the block
itself is short: an entry of the table can be repeated by one byte.
Source: RFC 7541.
"""

import re

from reliable_mq.errors import FrameError

TABLE_SIZE = 4096
"""The most bytes of the table; the default of HTTP/2, which we do not change."""
LIST_SIZE_MAX = 32 * 1024
"""The most bytes of the names and values of one block, 32 more for each header."""
_OVERHEAD = 32
_KEPT_MAX = 2048  # Huffman texts whose plain text is kept
_KEPT_SIZE_MAX = 128

Headers = list[tuple[bytes, bytes]]

_STATIC_TEXT = """
:authority;:method GET;:method POST;:path /;:path /index.html;:scheme http;:scheme https;
:status 200;:status 204;:status 206;:status 304;:status 400;:status 404;:status 500;
accept-charset;accept-encoding gzip, deflate;accept-language;accept-ranges;accept;
access-control-allow-origin;age;allow;authorization;cache-control;content-disposition;
content-encoding;content-language;content-length;content-location;content-range;content-type;
cookie;date;etag;expect;expires;from;host;if-match;if-modified-since;if-none-match;if-range;
if-unmodified-since;last-modified;link;location;max-forwards;proxy-authenticate;
proxy-authorization;range;referer;refresh;retry-after;server;set-cookie;
strict-transport-security;transfer-encoding;user-agent;vary;via;www-authenticate
"""
_STATIC = [
    (name.encode(), value.encode())
    for name, _, value in (
        each.partition(" ") for each in _STATIC_TEXT.replace("\n", "").strip(";").split(";")
    )
]

# The length of the code of each byte in bits. The code is canonical, so lengths say it all. The
# last one is that of the end mark. (RFC 7541, appendix B)
_CODE_LENGTHS = (
    *(13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28),
    *(28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28),
    *(6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6),
    *(5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10),
    *(13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7),
    *(7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6),
    *(15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5),
    *(6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28),
    *(20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23),
    *(24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24),
    *(22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23),
    *(21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23),
    *(26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25),
    *(19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27),
    *(20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23),
    *(26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26),
    30,
)
_END_MARK = 256
_PADDING_BITS_MAX = 7


def _codes() -> list[tuple[int, int]]:
    """Return the code and its length of each byte, and of the end mark."""
    codes = [(0, 0)] * len(_CODE_LENGTHS)
    code = length = 0
    for symbol in sorted(range(len(_CODE_LENGTHS)), key=lambda each: (_CODE_LENGTHS[each], each)):
        code <<= _CODE_LENGTHS[symbol] - length
        length = _CODE_LENGTHS[symbol]
        codes[symbol] = (code, length)
        code += 1
    return codes


def _steps() -> tuple[list[tuple[int, bytes]], frozenset[int]]:
    """Return the steps of a machine that reads four bits at a time, and where it may end.

    A step is at 16 * state + bits: the next state (-1: no code begins so) and the bytes it yields.
    """
    children: list[list[int]] = [[-1, -1]]  # a number of a node, or -2 - symbol
    for symbol, (code, length) in enumerate(_codes()):
        node = 0
        for bit in range(length - 1, 0, -1):
            branch = code >> bit & 1
            if children[node][branch] == -1:
                children[node][branch] = len(children)
                children.append([-1, -1])
            node = children[node][branch]
        children[node][code & 1] = -2 - symbol
    steps: list[tuple[int, bytes]] = []
    for start in range(len(children)):
        for bits in range(16):
            node, found = start, bytearray()
            for bit in (3, 2, 1, 0):
                node = children[node][bits >> bit & 1]
                if node < -1:
                    symbol, node = -2 - node, 0
                    if symbol == _END_MARK:
                        node = -1
                    else:
                        found.append(symbol)
                if node == -1:
                    break
            steps.append((node, bytes(found)))
    ends, node = {0}, 0
    for _ in range(_PADDING_BITS_MAX):
        node = children[node][1]
        ends.add(node)
    return steps, frozenset(ends)


_STEPS, _ENDS = _steps()
_kept: dict[bytes, bytes] = {}


def plain_of(text: bytes) -> bytes:
    """Return the bytes of a Huffman text.

    Raises:
        FrameError: when it is none.
    """
    known = _kept.get(text)
    if known is not None:
        return known
    state, pieces, steps = 0, [], _STEPS
    for byte in text:
        state, first = steps[state << 4 | byte >> 4]
        if state < 0:
            break
        state, second = steps[state << 4 | byte & 15]
        if state < 0:
            break
        pieces.append(first + second)
    if state not in _ENDS:
        raise FrameError("a header is no Huffman text")
    plain = b"".join(pieces)
    if len(text) <= _KEPT_SIZE_MAX:
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        _kept[text] = plain
    return plain


_INDEXED = 0x80
_UNUSED = [(b"", b"")] * (_INDEXED + 1)  # so that the byte of an entry is its place
_NEWEST = len(_UNUSED) + len(_STATIC)  # the place of the newest entry of a table
_known_entries = re.compile(rb"[\x81-\xfe]+").match  # headers of a byte each
_KEPT, _NAME_INDEX = 0x40, 0x3F  # the largest number of a name: it goes on
_FAR_NAME = 2 * _KEPT | _NAME_INDEX  # the place of a name whose number has a second byte of 0
_LENGTH = 0x7F  # the largest length of a text: it goes on
_MORE = 0x80  # of a number: it goes on
_NUMBER = b"x-mq-request-id"
_NUMBER_BEGIN = b"\0" + bytes((len(_NUMBER),)) + _NUMBER + bytes((36,))  # a UUID, kept by nobody
_NUMBER_SIZE = len(_NUMBER_BEGIN) + 36
_NONE = -1
_RUN_SIZE_MAX = 4096  # in memory, of a run that is kept,
_RUNS_SIZE_MAX = 8192  # and of all runs of a connection
_OBJECTS_SIZE = 150  # so much take a header's objects


class HeaderReader:
    """The header blocks of one connection, in their order.

    Invariant: `_size` is that of the entries of the table, and at most `_size_max`. No entry is
    larger than `_largest`. `_entries` has the static table, and the other one behind it, the newest
    entry first. The entry of a number is at this number and `_INDEXED`, as in its byte.
    `_runs` has headers by their part of a block, which change no table and are read with this one.

    A client that keeps nothing in the table writes the same bytes with each call, but for the
    number of the call. So what is before and behind this number is read once.
    """

    __slots__ = (
        *("_changes", "_entries", "_largest", "_runs", "_runs_size", "_size", "_size_max"),
    )

    def __init__(self) -> None:
        self._entries = [*_UNUSED, *_STATIC]
        self._size = 0
        self._size_max = TABLE_SIZE
        self._largest = _OVERHEAD + max(len(name) + len(value) for name, value in _STATIC)
        self._runs: dict[bytes, Headers] = {}
        self._runs_size = 0
        self._changes = 0  # of the table

    def read(self, block: bytes) -> Headers:
        """Return the headers of a whole block.

        Raises:
            FrameError: when it is none, or longer than `LIST_SIZE_MAX`. The table is no longer the
                peer's then: the connection cannot go on.
        """
        number_at = block.find(_NUMBER_BEGIN)
        if number_at >= 0:
            end = number_at + _NUMBER_SIZE
            before, behind = self._runs.get(block[:number_at]), self._runs.get(block[end:])
            if before is not None and behind is not None and end <= len(block):
                return [*before, (_NUMBER, block[end - 36 : end]), *behind]
        try:
            changes = self._changes
            headers, literal_size, before_number = self._read(block, number_at)
        except IndexError as error:
            raise FrameError(
                "a header block ends within a header, or refers to an entry that is not there"
            ) from error
        if len(headers) * self._largest + literal_size > LIST_SIZE_MAX:  # look closer
            size = sum(len(name) + len(value) + _OVERHEAD for name, value in headers)
            if size > LIST_SIZE_MAX:
                raise FrameError(f"the headers of a request take more than {LIST_SIZE_MAX} bytes")
        if before_number >= 0:
            self._note_runs(block, headers, before_number, changes)
        return headers

    def _read(self, block: bytes, number_at: int) -> tuple[Headers, int, int]:
        """Return the headers, and the bytes of names and values that are not of the table.

        Each header is a byte or more, so their number needs no limit: that of the block holds. The
        last number says how many headers are before `number_at`; -1: no header begins there.
        """
        headers: Headers = []
        entries, keep = self._entries, self._keep
        at, end, literal_size, before = 0, len(block), 0, _NONE
        while at < end:
            first = block[at]
            if at == number_at:
                before = len(headers)
            if first & _INDEXED:
                known = _known_entries(block, at)
                if known is None:
                    index, at = self._number(block, at, 7)
                    headers.append(self._entry(index))
                else:
                    at = known.end()
                    headers += map(entries.__getitem__, known[0])
                continue
            if first == _KEPT | _NAME_INDEX and (more := block[at + 1]) < _MORE:
                length = block[at + 2]
                value_at = at + 3
                value_end = value_at + length
                if length < _LENGTH and value_end <= end:  # as a client on Netty writes it
                    name = entries[_FAR_NAME + more][0]
                    header = (name, block[value_at:value_end])
                    size, at = len(name) + length, value_end
                    literal_size += size
                    headers.append(header)
                    keep(header, size + _OVERHEAD)
                    continue
            if first & 0xE0 == 0x20:
                limit, at = self._number(block, at, 5)
                if headers or limit > TABLE_SIZE:
                    raise FrameError("the size of the header table cannot be changed so")
                self._size_max = limit
                self._shrink()
                self._forget_runs()
                continue
            header, size, at = self._literal(block, first, at)
            literal_size += size
            headers.append(header)
        return headers, literal_size, before

    def _note_runs(self, block: bytes, headers: Headers, before: int, changes: int) -> None:
        """Keep what is before and behind the number of a call, if the block changes no table."""
        number_at = block.find(_NUMBER_BEGIN)
        runs = {
            block[:number_at]: headers[:before],
            block[number_at + _NUMBER_SIZE :]: headers[before + 1 :],
        }
        sizes = [_run_size(*run) for run in runs.items()]
        if changes != self._changes or max(sizes) > _RUN_SIZE_MAX:
            return
        if self._runs_size + sum(sizes) > _RUNS_SIZE_MAX:
            self._forget_runs()
        for (part, some), size in zip(runs.items(), sizes, strict=True):
            if part not in self._runs:
                self._runs[part] = some
                self._runs_size += size

    def _forget_runs(self) -> None:
        self._changes += 1
        self._runs.clear()
        self._runs_size = 0

    def _literal(self, block: bytes, first: int, at: int) -> tuple[tuple[bytes, bytes], int, int]:
        """Return a header that is not in the table, its size, and where the next one begins."""
        if _KEPT < first < _KEPT | _NAME_INDEX:
            name, at = self._entries[first + _KEPT][0], at + 1
        else:
            index, at = self._number(block, at, 6 if first & _KEPT else 4)
            if index:
                name = self._entry(index)[0]
            else:
                name, at = self._text(block, at)
        length = block[at]
        end = at + 1 + length
        if length < _LENGTH and end <= len(block):  # as a rule
            value, at = block[at + 1 : end], end
        else:
            value, at = self._text(block, at)
        header, size = (name, value), len(name) + len(value)
        if first & _KEPT:
            self._keep(header, size + _OVERHEAD)
        return header, size, at

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if not 0 < index < len(self._entries) - _INDEXED:
            raise FrameError(f"a header refers to entry {index} of the table, which is not there")
        return self._entries[_INDEXED + index]

    def _keep(self, header: tuple[bytes, bytes], size: int) -> None:
        self._changes += 1
        if self._runs:
            self._forget_runs()
        self._entries.insert(_NEWEST, header)
        self._size += size
        if size > self._largest:  # noqa: PLR1730 - a call of max() costs more than the rest
            self._largest = size
        if self._size > self._size_max:
            self._shrink()

    def _shrink(self) -> None:
        size, size_max, take_oldest = self._size, self._size_max, self._entries.pop
        while size > size_max:
            name, value = take_oldest()
            size -= len(name) + len(value) + _OVERHEAD
        self._size = size

    @staticmethod
    def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
        limit = (1 << bits) - 1
        number = block[at] & limit
        at += 1
        if number < limit:
            return number, at
        for shift in (0, 7, 14, 21):
            byte = block[at]
            at += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number, at
        raise FrameError("a number of a header block is too large")

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        first = block[at]
        is_huffman = first & 0x80
        if first & _LENGTH < _LENGTH:
            length, at = first & _LENGTH, at + 1
        else:
            length, at = self._number(block, at, 7)
        end = at + length
        if end > len(block):
            raise FrameError("a header block ends within a text")
        text = block[at:end]
        return (plain_of(text) if is_huffman else text), end

    def invariants(self) -> None:
        """Check the size of the table.

        Raises:
            FrameError: when it is not that of its entries.
        """
        table = self._entries[_NEWEST:]
        sizes = [len(name) + len(value) + _OVERHEAD for name, value in table]
        if sum(sizes) != self._size or self._size > self._size_max:
            raise FrameError(f"the table has {sum(sizes)} bytes, not {self._size}")
        if max(sizes, default=0) > self._largest:
            raise FrameError(f"an entry is larger than {self._largest} bytes")
        kept = sum(_run_size(*run) for run in self._runs.items())
        if kept != self._runs_size or kept > _RUNS_SIZE_MAX:
            raise FrameError(f"the runs have {kept} bytes, not {self._runs_size}")


def _run_size(part: bytes, headers: Headers) -> int:
    return len(part) + sum(len(name) + len(value) + _OBJECTS_SIZE for name, value in headers)


def block_of(headers: Headers) -> bytes:
    """Return the block of some headers; the peer keeps none of them."""
    return b"".join(
        b"".join((b"\0", _counted(name), name, _counted(value), value)) for name, value in headers
    )


def _counted(text: bytes) -> bytes:
    """Return the length of a text as a number of seven bits and more."""
    length, limit = len(text), 127
    if length < limit:
        return bytes((length,))
    length -= limit
    number = bytearray((limit,))
    while length >= 0x80:
        number.append(length & 0x7F | 0x80)
        length >>= 7
    number.append(length)
    return bytes(number)
