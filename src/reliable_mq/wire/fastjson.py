"""JSON as fastjson 1.x writes it and Apache's tools expect it: almost JSON.

Map keys may be bare numbers (`{0:"1.2.3.4:10911"}`) or objects (`{{"topic":"T"}:{}}`); readers also
meet single quotes, bare names and trailing commas. An object key is a tuple of its sorted
(name, value) pairs here, so that it can be a dictionary key.
"""

import re
from typing import Any

import msgspec

_STRINGS = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL),
}
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[-+.\w$]+")
_WORDS = {"true": True, "false": False, "null": None}


def loads(text: bytes | str) -> Any:  # JSON is any value
    """Return the value that `text` spells.

    Raises:
        ValueError: when it spells none.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _Reader(text.decode() if isinstance(text, bytes) else text).whole()


def dumps(value: object, *, indent: bool = False) -> bytes:
    """Return `value` in fastjson's form: names sorted, numbers and objects as keys bare.

    Args:
        value: dictionaries, lists, text, numbers, booleans, None.
        indent: whether to spread it over lines with tabs, as the files of a store are written.
    """
    return _write(value, "\n" if indent else "").encode()


def _write(value: object, line: str) -> str:
    deeper = line + "\t" if line else ""
    if isinstance(value, dict):
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
    if isinstance(key, int):
        return str(key)
    return msgspec.json.encode(key).decode()


def _key_order(key: object) -> tuple[int, int, str]:
    return (0, key, "") if isinstance(key, int) else (1, 0, str(key))


class _Reader:
    """Reads one value; `_at` is where the next token begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Any:
        value = self._value()
        if self._peek():
            raise self._error("more after the value")
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
        while (first := self._peek()) != "}":
            if first == ",":
                self._at += 1
                continue
            key = self._value()
            if isinstance(key, dict):
                key = tuple(sorted(key.items()))
            if self._peek() != ":":
                raise self._error("no colon after a key")
            self._at += 1
            pairs[key] = self._value()
        self._at += 1
        return pairs

    def _array(self) -> list[Any]:
        self._at += 1
        items: list[Any] = []
        while (first := self._peek()) != "]":
            if first == ",":
                self._at += 1
                continue
            items.append(self._value())
        self._at += 1
        return items

    def _string(self, quote: str) -> str:
        match = _STRINGS[quote].match(self._text, self._at)
        if not match:
            raise self._error("a text does not end")
        self._at = match.end()
        inner = match[1]
        if quote == "'":
            inner = inner.replace("\\'", "'").replace('"', '\\"')
        return str(msgspec.json.decode(f'"{inner}"'))

    def _bare(self) -> Any:
        match = _BARE.match(self._text, self._at)
        if not match:
            raise self._error("no value")
        self._at = match.end()
        word = match[0]
        if word in _WORDS:
            return _WORDS[word]
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
        return word

    def _error(self, what: str) -> ValueError:
        near = self._text[self._at : self._at + 20]
        return ValueError(f"{what} at {self._at}: {near!r}")
