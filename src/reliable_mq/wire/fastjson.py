"""JSON in the dialect of fastjson 1.x, which Apache's tools read and write.

Map keys may be bare numbers (`{0:"1.2.3.4:10911"}`) or objects (`{{"topic":"T"}:{}}`). The reader
also accepts single quotes, bare names, extra commas and more escapes than JSON has. An object that
is a key becomes a tuple of its sorted (name, value) pairs, because a dictionary key must be
hashable. A reference (`{"$ref":"$.x"}`) is not resolved: it is read as a plain object.
Source: fastjson 1.2.83, tested against its `JSON.parse` and `JSON.toJSONString`.
"""

import re
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_STRINGS = {
    '"': re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL),
    "'": re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = dict(zip("bfnrtvF01234567", "\b\f\n\r\t\v\f\0\1\2\3\4\5\6\7", strict=True))
_ESCAPED |= {mark: mark for mark in "\"'\\/"}
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[-+.\w$]+", re.ASCII)
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "undefined": None, "NaN": None}


def loads(text: bytes | str, *, slow_size_max: int | None = None) -> Any:  # JSON is any value
    """Return the value of a JSON text.

    Args:
        text: the text.
        slow_size_max: longest text, in bytes, that is read if it is not standard JSON. None, the
            default: no limit.

    Raises:
        ValueError: when the text is not JSON, is too long, or is nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    if slow_size_max is not None and len(text) > slow_size_max:
        raise ValueError(
            f"the text is not standard JSON and has {len(text)} bytes; such a text may have at "
            f"most {slow_size_max}"
        )
    try:
        return _Reader(text.decode() if isinstance(text, bytes) else text).whole()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def decode(
    text: bytes | str, kind: type[_T], *, strict: bool = True, slow_size_max: int | None = None
) -> _T:
    """Return the value of a JSON text as a `kind`. Standard JSON is decoded in one pass.

    Args:
        text: the text.
        kind: the type that the value must have.
        strict: whether a number in quotes is refused. Default True.
        slow_size_max: see `loads`.

    Raises:
        ValueError: when the text is not JSON; see `loads`.
        msgspec.ValidationError: when the value is not a `kind`.
    """
    try:
        return msgspec.json.decode(text, type=kind, strict=strict)
    except (msgspec.MsgspecError, RecursionError):
        value = loads(text, slow_size_max=slow_size_max)
        return msgspec.convert(value, kind, strict=strict)


def dumps(value: object, *, indent: bool = False) -> bytes:
    """Return `value` as fastjson writes it: names sorted, numbers and objects as bare keys.

    Args:
        value: dictionaries, lists, text, numbers, booleans, None. fastjson omits None values of a
            map; this function does not, so the caller removes them first.
        indent: whether to write one entry per line, indented with tabs, as the files of a store
            do. Default False.
    """
    return _write(value, "\n" if indent else "").encode()


def _write(value: object, line: str) -> str:
    deeper = line + "\t" if line else ""
    if isinstance(value, dict):
        if not value:
            return "{}"
        names = sorted(value, key=_key_order)
        pairs = [f"{_write_key(name)}:{_write(value[name], deeper)}" for name in names]
        return "{" + deeper + f",{deeper}".join(pairs) + line + "}"
    if isinstance(value, list | tuple):
        items = [_write(item, deeper) for item in value]
        return "[" + deeper + f",{deeper}".join(items) + line + "]" if items else "[]"
    return msgspec.json.encode(value).decode()


def _write_key(key: object) -> str:
    if isinstance(key, tuple):
        return _write(dict(key), "")
    return msgspec.json.encode(key).decode()


def _key_order(key: object) -> tuple[int, int, str]:
    return (0, key, "") if isinstance(key, int) else (1, 0, str(key))


class _Reader:
    """Reads one value. `_at` is the position of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Any:
        value = self._value()
        if self._peek():
            raise self._error("unexpected text after the value")
        return value

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        first = self._peek()
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first in _STRINGS:
            return self._string(first)
        return self._bare()

    def _object(self) -> dict[Any, Any]:
        self._at += 1
        pairs: dict[Any, Any] = {}
        while self._peek_after_commas() != "}":
            key = self._key()
            if self._peek() != ":":
                raise self._error("no colon after a key")
            self._at += 1
            pairs[key] = self._value()
            if self._peek() not in (",", "}"):
                raise self._error("no comma after a value")
        self._at += 1
        return pairs

    def _key(self) -> Any:
        key = self._value()
        if isinstance(key, dict):
            key = tuple(sorted(key.items(), key=lambda pair: _key_order(pair[0])))
        try:
            hash(key)
        except TypeError:
            raise self._error(
                "a key is a list, or an object that holds more than plain values"
            ) from None
        return key

    def _array(self) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        while self._peek_after_commas() != "]":
            items.append(self._value())
        self._at += 1
        return items

    def _peek_after_commas(self) -> str:
        while self._peek() == ",":
            self._at += 1
        return self._peek()

    def _string(self, quote: str) -> str:
        match = _STRINGS[quote].match(self._text, self._at)
        if not match:
            raise self._error("a string is not closed")
        inner = match[1]
        if "\\" in inner:
            inner = _ESCAPE.sub(self._unescaped, inner)
            # An escaped surrogate pair becomes one character; half a pair raises.
            inner = inner.encode("utf-16", "surrogatepass").decode("utf-16")
        self._at = match.end()
        return inner

    def _unescaped(self, match: re.Match[str]) -> str:
        code = match[1] or match[2]
        if code:
            return chr(int(code, 16))
        if match[3] not in _ESCAPED:
            raise self._error(f"unknown escape {match[0]}")
        return _ESCAPED[match[3]]

    def _bare(self) -> Any:
        match = _BARE.match(self._text, self._at)
        if not match:
            raise self._error("no value")
        word = match[0]
        self._at = match.end()
        if word in _WORDS:
            return _WORDS[word]
        if _INTEGER.fullmatch(word):
            return int(word)
        return float(word) if _FLOAT.fullmatch(word) else word

    def _error(self, what: str) -> ValueError:
        near = self._text[self._at : self._at + 20]
        return ValueError(f"{what} at {self._at}: {near!r}")
