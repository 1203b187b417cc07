"""The fields of payloads that people must not read, and payloads without their values. Pure.

Receives names of fields, and bodies. Returns a body as JSON text in which `MASK` stands for each
sensitive value. A body that cannot be looked into is not returned at all.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.plain_text import a_kind

MASK = "[masked]"
"""Stands for a sensitive value."""
NOT_SHOWN = "[not shown: its topic has sensitive fields, and it cannot be looked into]"
"""Stands for a whole payload."""
EVERYTHING = "*"
"""As a name: no payload of the topic is shown."""
BODY_SIZE_MAX = 524_288
"""A longer body is not looked into, and so not shown."""
NAMES_MAX, NAME_LENGTH_MAX = 200, 200

_MASKED_TOKEN = json.dumps(MASK)
_ENCODED = "database64"
"""`data_base64` of a CloudEvent: a payload that cannot be looked into."""
_CHECKSUM = "__CRC32#"
"""The property with a checksum of the whole body, by Apache's clients and brokers."""
_CHECKSUM_SAID = re.compile(r"\b(crc|has)( |</dt><dd>)[0-9a-f]{8}\b")
"""In a sentence, and in the HTML of a report."""
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_HAS_FIELDS = re.compile(r"[{\[=:<]")
"""A text without these signs has no field with a value: it is a sentence, or a value."""
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_BYTE_ORDER_MARK = "\ufeff"
_OPENING, _CLOSING = ("{", "["), ("}", "]")


class MaskMisplaced(UsageError):
    """A changed payload has a mask where the first one has no sensitive value."""


class _Span(NamedTuple):
    """A value in a text. `place`: the names and indexes that lead to it."""

    place: tuple[str | int, ...]
    start: int
    end: int


class _Level(msgspec.Struct):
    """A container that is open: the way to it, and where in it the reader is."""

    is_object: bool
    place: tuple[str | int, ...]
    names: tuple[str, ...]
    key: str | None = None
    index: int = 0


class SensitiveFields(msgspec.Struct, frozen=True):
    """The sensitive fields of a topic's payloads.

    `names` are as `checked_names` returns them: `card_number` is a field at any depth, and
    `customer.email` the field `email` of each `customer`. Case, `_` and `-` do not count.
    """

    names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.names)

    def masked(self, body: bytes) -> str | None:
        """Return a JSON body with masks; None: it cannot be looked into, so nobody may see it.

        Only the values are replaced: the rest of the text is as it was.
        """
        if not self.names:
            return body.decode("utf-8", "backslashreplace")
        if EVERYTHING in self.names:
            return None
        text = _json_text(body)
        return None if text is None else _replaced(text, dict.fromkeys(self._spans(text)))

    def shown(self, body: bytes) -> str:
        """Return a body as text with masks, or `NOT_SHOWN`."""
        text = self.masked(body)
        return NOT_SHOWN if text is None else text

    def restored(self, edited: str, original: bytes) -> str:
        """Return a changed payload in which each mask is again the value that it stands for.

        Args:
            edited: what a person has made of `masked(original)`. Other values are left as they are.
            original: the payload before.

        Raises:
            MaskMisplaced: a mask is at a place where the original has no sensitive value, or the
                changed payload is no JSON.
        """
        if not self.names:
            return edited
        before, after = _json_text(original), _json_text(edited.encode("utf-8", "replace"))
        if before is None or after is None or EVERYTHING in self.names:
            raise MaskMisplaced("the payload is no JSON: its masked values cannot be put back")
        known: dict[tuple[Any, ...], str] = {}
        for number, span in _numbered(self._spans(before)):
            known[span.place, number] = before[span.start : span.end]
        values: dict[_Span, str] = {}
        for number, span in _numbered(self._spans(after)):
            if after[span.start : span.end] == _MASKED_TOKEN:
                value = known.get((span.place, number))
                if value is None:
                    raise MaskMisplaced(_misplaced(span.place))
                values[span] = value
        return _replaced(after, values)

    def masked_headers(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return properties of a message; those that have a sensitive field are masked."""
        return {
            name: MASK if self._hides_header(name, value) else value
            for name, value in properties.items()
        }

    def masked_json(self, text: str) -> str:
        """Return the properties of a stub, a JSON object as text, as `masked_headers` does."""
        if not self.names or not text:
            return text
        try:
            found = json.loads(text)
        except ValueError:
            return MASK
        return json.dumps(self.masked_headers(found)) if isinstance(found, dict) else MASK

    def masked_evidence(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        """Return the evidence of a finding without checksums of the whole body.

        Who knows the rest of a payload could try short values until the checksum is right.
        """
        if not self.names:
            return dict(evidence)
        return {
            name: self.masked_sentence(value) if isinstance(value, str) else value
            for name, value in evidence.items()
            if not name.endswith("_crc")
        }

    def masked_sentence(self, said: str) -> str:
        """Return a sentence or a report on findings without checksums; see `masked_evidence`."""
        return _CHECKSUM_SAID.sub(rf"\1\2{MASK}", said) if self.names else said

    def _hides_header(self, name: str, value: Any) -> bool:
        if self._hides((_plain(name),)):
            return True
        return bool(self) and (name == _CHECKSUM or self._hides_text(str(value)))

    def _hides(self, way: tuple[str, ...]) -> bool:
        """Whether the value at the end of a way of plain names is sensitive."""
        if way and way[-1] == _ENCODED:
            return True
        return any(".".join(way[start:]) in self.names for start in range(len(way)))

    def _hides_text(self, words: str) -> bool:
        """Whether a string has a sensitive field in itself, as JSON or as other text."""
        inner = words.lstrip(_BYTE_ORDER_MARK)
        if not _HAS_FIELDS.search(inner):
            return False
        text = _json_text(inner.encode("utf-8", "replace"))
        if text is None:
            plain = _plain(unquote(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), inner)))
            return any(name.rpartition(".")[2] in plain for name in self.names)
        found = json.loads(text)
        if isinstance(found, str):
            return self._hides_text(found)
        return any(True for _ in self._spans(text))

    def _spans(self, text: str) -> Iterator[_Span]:
        """Yield the sensitive values of a JSON text, in order. A value without a name is one."""
        levels: list[_Level] = []
        tokens = _TOKEN.finditer(text)
        for match in tokens:
            piece = match[0]
            level = levels[-1] if levels else None
            if piece == ":":
                continue
            if piece == "," and level is not None:
                level.key, level.index = None, level.index + 1
                continue
            if piece in _CLOSING:
                levels.pop()
                continue
            if level is not None and level.is_object and level.key is None:
                level.key = json.loads(piece)
                continue
            place, names = _way_in(level)
            is_hidden = self._hides(names)
            if is_hidden or (piece not in _OPENING and self._hides_value(piece, names)):
                yield _Span(place, match.start(), _end_of(match, tokens))
            elif piece in _OPENING:
                levels.append(_Level(piece == "{", place, names))

    def _hides_value(self, piece: str, names: tuple[str, ...]) -> bool:
        is_text = piece.startswith('"')
        if not names or piece == _MASKED_TOKEN:
            return True
        return is_text and self._hides_text(json.loads(piece))


NOTHING_SENSITIVE = SensitiveFields()


def checked_names(given: Any, where: str) -> tuple[str, ...]:
    """Return names of sensitive fields as `SensitiveFields` takes them.

    Args:
        given: the names.
        where: who gives them, for the error.

    Raises:
        ConfigurationError: they are no names.
    """
    if isinstance(given, str | bytes) or not isinstance(given, list | tuple | set | frozenset):
        raise ConfigurationError(
            f'{where}: sensitive takes names of fields, as ["card_number"], not {a_kind(given)}'
        )
    if len(given) > NAMES_MAX:
        raise ConfigurationError(f"{where}: sensitive takes at most {NAMES_MAX} names")
    found = []
    for each in given:
        if not isinstance(each, str):
            raise ConfigurationError(f"{where}: sensitive has a name that is {a_kind(each)}")
        name = _plain(each.strip())
        if not name or len(name) > NAME_LENGTH_MAX or not all(name.split(".")):
            raise ConfigurationError(
                f"{where}: sensitive has {each[:80]!r}: a name of a field is needed, or names with"
                " dots between them, as customer.email"
            )
        found.append(name)
    return tuple(dict.fromkeys(found))


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def _json_text(body: bytes) -> str | None:
    """Return a body as text; None: it is no JSON, or too long to look into."""
    if len(body) > BODY_SIZE_MAX:
        return None
    try:
        text = body.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text


def _way_in(level: _Level | None) -> tuple[tuple[str | int, ...], tuple[str, ...]]:
    """Return the place of the value that the reader is at, and the plain names on the way."""
    if level is None:
        return (), ()
    if level.key is None:
        return (*level.place, level.index), level.names
    return (*level.place, level.key), (*level.names, _plain(level.key))


def _end_of(begun: re.Match[str], tokens: Iterator[re.Match[str]]) -> int:
    """Return the end of a value; its tokens are taken."""
    depth = int(begun[0] in _OPENING)
    end = begun.end()
    while depth:
        match = next(tokens)
        depth += (match[0] in _OPENING) - (match[0] in _CLOSING)
        end = match.end()
    return end


def _replaced(text: str, values: Mapping[_Span, str | None]) -> str:
    """Return a text with other values, in the order of the text; None: a mask."""
    parts: list[str] = []
    begin = 0
    for span, value in values.items():
        parts += (text[begin : span.start], _MASKED_TOKEN if value is None else value)
        begin = span.end
    return "".join((*parts, text[begin:]))


def _numbered(spans: Iterator[_Span]) -> Iterator[tuple[int, _Span]]:
    """Yield each span with its number among those of its place: JSON can name a field twice."""
    counts: dict[tuple[str | int, ...], int] = {}
    for span in spans:
        counts[span.place] = counts.get(span.place, 0) + 1
        yield counts[span.place], span


def _misplaced(place: tuple[str | int, ...]) -> str:
    way = ".".join(map(str, place))[:200] or "the payload"
    return f"{MASK} is at {way}, where the first payload has no value: write one"
