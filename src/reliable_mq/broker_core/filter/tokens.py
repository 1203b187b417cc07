"""The lexer of filter expressions: from text to tokens, one at a time.

The longest match wins, as in the lexer that Apache generates. Tokens are read on demand, because
Apache ignores the text after a complete expression, except for the next token.
Source: Apache RocketMQ `SelectorParser.jj`, tokens.
"""

import re
from enum import Enum
from typing import NamedTuple

from reliable_mq.errors import ReliableMQError
from reliable_mq.limits import FILTER_LENGTH_MAX, FILTER_PARTS_MAX


class FilterRefused(ReliableMQError):
    """A filter expression does not parse, or compares values that cannot be compared.

    The text is the text of Apache's broker, with the name of the Java exception. For a parse error
    it is only the first line: Apache's list of expected tokens is omitted.
    """


def cannot(text: str) -> FilterRefused:
    """Return the refusal of an expression that parses but has no meaning."""
    return FilterRefused(f"java.lang.RuntimeException: {text}")


class TokenKind(Enum):
    """The kind of a token. The text of words and signs is in upper case."""

    WORD = "word"
    SIGN = "sign"
    NAME = "name"
    STRING = "string"
    WHOLE = "whole number"
    FLOATING = "floating-point number"
    END = "end"


class Token(NamedTuple):
    """One token and its text, see `TokenKind`; a string has no quotes. `at` is its position in the
    expression.
    """

    kind: TokenKind
    text: str
    at: int = 0


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
_PARSER = "org.apache.rocketmq.filter.parser"
_NAMES = {
    TokenKind.NAME: "<ID>",
    TokenKind.STRING: "<STRING_LITERAL>",
    TokenKind.WHOLE: "<DECIMAL_LITERAL>",
    TokenKind.FLOATING: "<FLOATING_POINT_LITERAL>",
}


class TokenReader:
    """The tokens of a text, with one token of look-ahead.

    `count` is the number of tokens read. Too many tokens or too long a text are refused.
    """

    def __init__(self, text: str) -> None:
        if len(text) > FILTER_LENGTH_MAX:
            raise FilterRefused(
                f"an expression of {len(text)} characters; at most {FILTER_LENGTH_MAX} are allowed"
            )
        self.count = 0
        self._text = text
        self._at = 0
        self._next: Token | None = None

    def peek(self) -> Token:
        """Return the next token without taking it.

        Raises:
            FilterRefused: when the text is not a token.
        """
        if self._next is None:
            self._next = self._read()
        return self._next

    def take(self) -> Token:
        """Return the next token and take it; see `peek`."""
        token = self.peek()
        self._next = None
        return token

    def take_if(self, *texts: str) -> str:
        """Take the next token if it is one of these words or signs; return its text or ''."""
        token = self.peek()
        if token.kind in (TokenKind.WORD, TokenKind.SIGN) and token.text in texts:
            self._next = None
            return token.text
        return ""

    def expect(self, text: str) -> None:
        """Take a word or sign that is required here.

        Raises:
            FilterRefused: when the next token is another one.
        """
        if not self.take_if(text):
            raise self.unexpected(self.peek())

    def unexpected(self, token: Token) -> FilterRefused:
        """Return the refusal of a token that is not allowed at its position."""
        line, column = self._place(token.at if token.kind is not TokenKind.END else token.at - 1)
        what = "<EOF>"
        if token.kind is not TokenKind.END:
            name = _NAMES.get(token.kind, f'"{token.text}"')
            what = f' {name} "{self._text[token.at : self._at]} "'
        return FilterRefused(
            f'{_PARSER}.ParseException: Encountered "{what}" at line {line}, column {column}.'
        )

    def _place(self, at: int) -> tuple[int, int]:
        """Return line and column of a position, both from 1; 0 when the text is empty."""
        before = self._text[: at + 1]
        lines = re.split(r"\r\n|\r|\n", before)
        return (len(lines), len(lines[-1])) if before else (0, 0)

    def _read(self) -> Token:
        while skipped := _SKIPPED.match(self._text, self._at):
            self._at = skipped.end()
        if self._at == len(self._text):
            return Token(TokenKind.END, "", self._at)
        self.count += 1
        if self.count > FILTER_PARTS_MAX:
            raise FilterRefused(
                f"at most {FILTER_PARTS_MAX} words and signs are allowed in an expression"
            )
        begin = self._at
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            line, column = self._place(begin)
            raise FilterRefused(
                f"{_PARSER}.TokenMgrError: Lexical error at line {line}, column {column}: "
                f"no token begins with {self._text[begin : begin + 20]!r}"
            )
        self._at = found.end()
        kind, text = TokenKind[found.lastgroup], found[0]
        if kind is TokenKind.STRING:
            return Token(kind, text[1:-1].replace("''", "'"), begin)
        if kind is TokenKind.NAME and text.upper() in _WORDS:
            return Token(TokenKind.WORD, text.upper(), begin)
        return Token(kind, text, begin)
