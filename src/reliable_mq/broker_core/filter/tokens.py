"""Words of a filter expression: from text to tokens, one at a time.

The longest match wins, as in the lexer that Apache generates. Text behind a whole expression is
never looked at (but for the next token), so tokens are read when they are asked for.
Source: Apache RocketMQ `SelectorParser.jj`, tokens.
"""

import re
from enum import Enum
from typing import NamedTuple

from reliable_mq.errors import ReliableMQError


class FilterRefused(ReliableMQError):
    """A filter expression that does not read, or compares what cannot be compared."""


class Kind(Enum):
    """What a token is. Words and signs are kept in upper case as their text."""

    WORD = "word"
    SIGN = "sign"
    NAME = "name"
    STRING = "string"
    WHOLE = "whole number"
    FLOATING = "floating-point number"
    END = "end"


class Token(NamedTuple):
    """One token and its text as `Kind` says; a string comes without its quotes."""

    kind: Kind
    text: str


_WORDS = frozenset(
    (
        *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    )
)
_SKIPPED = re.compile(r"[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/")
_TOKEN = re.compile(
    r"""
      (?P<FLOATING>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?
                 | \.[0-9]+(?:[eE][+-]?[0-9]+)?
                 | [0-9]+[eE][+-]?[0-9]+)
    | (?P<WHOLE>0|[1-9][0-9]*[lL]?)
    | (?P<STRING>'(?:''|[^'])*')
    | (?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*)
    | (?P<SIGN><>|>=|<=|[=<>(),+-])
    """,
    re.VERBOSE,
)
_END = Token(Kind.END, "")


class TokenReader:
    """The tokens of a text, with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next: Token | None = None

    def peek(self) -> Token:
        """Return the next token and leave it there.

        Raises:
            FilterRefused: when no token begins there.
        """
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        """Return the next token and step over it; see `peek`."""
        token = self.peek()
        self._next = None
        return token

    def take_if(self, *texts: str) -> str:
        """Take the next token when it is one of these words or signs; return its text or ''."""
        token = self.peek()
        if token.kind in (Kind.WORD, Kind.SIGN) and token.text in texts:
            self._next = None
            return token.text
        return ""

    def expect(self, text: str) -> None:
        """Take a word or sign that must come here.

        Raises:
            FilterRefused: when something else comes.
        """
        if not self.take_if(text):
            raise FilterRefused(f"{text} is expected before {self.peek().text!r}")

    def _read(self) -> Token:
        while skipped := _SKIPPED.match(self._text, self._at):
            self._at = skipped.end()
        if self._at == len(self._text):
            return _END
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            raise FilterRefused(f"no word begins at {self._text[self._at :][:20]!r}")
        self._at = found.end()
        kind, text = Kind[found.lastgroup], found[0]
        if kind is Kind.STRING:
            return Token(kind, text[1:-1].replace("''", "'"))
        if kind is Kind.NAME and text.upper() in _WORDS:
            return Token(Kind.WORD, text.upper())
        return Token(kind, text)
