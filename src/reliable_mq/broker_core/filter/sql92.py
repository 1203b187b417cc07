"""The parser of filter expressions: compile a text to a callable on a message's properties.

Receives a subscription's expression. Returns a `Filter`. Does not know subscriptions.
The text after a complete expression is ignored, as in Apache's parser.
Source: Apache RocketMQ `SelectorParser.jj`, grammar.
"""

from collections.abc import Callable
from functools import lru_cache

import msgspec

from reliable_mq.broker_core.filter import expressions
from reliable_mq.broker_core.filter.expressions import DEPTH_MAX, Expression, Properties
from reliable_mq.broker_core.filter.java_values import (
    INTEGER_MAX,
    LONG_MAX,
    Long,
    floating_number,
    java_text,
    whole_number,
)
from reliable_mq.broker_core.filter.tokens import FilterRefused, TokenKind, TokenReader, cannot
from reliable_mq.limits import FILTER_SEARCHES_MAX

SQL92 = "SQL92"  # the type of such an expression in a subscription
_FLOATING_MAX = 1.7976931348623157e308
_FLOATING_MIN = 4.9e-324  # Double.MIN_VALUE, the smallest value above 0; so 0.0 is refused


class Filter(msgspec.Struct, frozen=True):
    """A compiled expression. `parts` is its number of words and signs, `searches` of CONTAINS."""

    text: str
    evaluate: Callable[[Properties], object]
    parts: int = 1
    searches: int = 0

    def matches(self, properties: Properties) -> bool:
        """Whether the expression accepts a message; False if its evaluation fails."""
        try:
            return self.evaluate(properties) is True
        except (ValueError, TypeError):  # a property is not a number, or a cast would fail in Java
            return False


# A compiled filter takes some hundred bytes per part. So only a few large ones are cached.
_SMALL_LENGTH_MAX = 512


def compile_filter(text: str) -> Filter:
    """Return the filter of an expression; recently used filters are cached.

    Raises:
        FilterRefused: when the expression does not parse, or exceeds a limit of `limits`.
    """
    return _compile_small(text) if len(text) <= _SMALL_LENGTH_MAX else _compile_large(text)


def _compile(text: str) -> Filter:
    tokens = TokenReader(text)
    parser = _Parser(tokens)
    evaluate = expressions.as_boolean(parser.disjunction()).evaluate
    return Filter(text, evaluate, tokens.count, parser.searches)


_compile_small = lru_cache(maxsize=1024)(_compile)
_compile_large = lru_cache(maxsize=64)(_compile)


_BOOLEANS = {"TRUE": True, "FALSE": False, "NULL": None}


class _Parser:
    """A recursive-descent parser; each method parses the construct of its name."""

    def __init__(self, tokens: TokenReader) -> None:
        self._tokens = tokens
        self._depth = 0
        self.searches = 0

    def disjunction(self) -> Expression:
        """Parse x OR y ..."""
        first = self._conjunction()
        parts = [first]
        while self._tokens.take_if("OR"):
            parts.append(self._conjunction())
        return expressions.any_of(list(map(expressions.as_boolean, parts))) if parts[1:] else first

    def _conjunction(self) -> Expression:
        first = self._equality()
        parts = [first]
        while self._tokens.take_if("AND"):
            parts.append(self._equality())
        return expressions.all_of(list(map(expressions.as_boolean, parts))) if parts[1:] else first

    def _equality(self) -> Expression:
        left = self._comparison()
        while sign := self._tokens.take_if("=", "<>", "IS"):
            if sign == "IS":
                is_inverted = bool(self._tokens.take_if("NOT"))
                self._tokens.expect("NULL")
                left = expressions.is_null(left)
            else:
                is_inverted = sign == "<>"
                left = expressions.equal(left, self._comparison())
            left = expressions.not_(left) if is_inverted else left
        return left

    def _comparison(self) -> Expression:
        left = self._unary()
        take_if = self._tokens.take_if
        while True:
            if sign := take_if(">", ">=", "<", "<="):
                left = expressions.ordered(sign, left, self._unary())
                continue
            is_inverted = bool(take_if("NOT"))
            word = take_if("BETWEEN", "IN", "CONTAINS", "STARTSWITH", "ENDSWITH")
            if not word:
                if is_inverted:
                    raise self._tokens.unexpected(self._tokens.peek())
                return left
            left = self._predicate(word, left, inverted=is_inverted)

    def _predicate(self, word: str, left: Expression, *, inverted: bool) -> Expression:
        if word == "BETWEEN":
            low = self._unary()
            self._tokens.expect("AND")
            made = expressions.not_between if inverted else expressions.between
            return made(left, low, self._unary())
        if word == "IN":
            self._tokens.expect("(")
            words = [self._string()]
            while self._tokens.take_if(","):
                words.append(self._string())
            self._tokens.expect(")")
            return expressions.is_one_of(left, words, inverted=inverted)
        if word == "CONTAINS":
            self.searches += 1
            if self.searches > FILTER_SEARCHES_MAX:
                raise FilterRefused(f"at most {FILTER_SEARCHES_MAX} CONTAINS are allowed")
        return expressions.searched(word, left, self._string(), inverted=inverted)

    def _string(self) -> str:
        token = self._tokens.take()
        if token.kind is not TokenKind.STRING:
            raise self._tokens.unexpected(token)
        return token.text

    def _unary(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise FilterRefused(f"more than {DEPTH_MAX} nested expressions")
        match self._tokens.take_if("+", "-", "NOT", "("):
            case "+":
                part = self._unary()
            case "-":
                part = expressions.negative(self._unary())
            case "NOT":
                part = expressions.not_(expressions.as_boolean(self._unary()))
            case "(":
                part = self.disjunction()
                self._tokens.expect(")")
            case _:
                part = self._primary()
        self._depth -= 1
        return part

    def _primary(self) -> Expression:
        token = self._tokens.take()
        match token.kind:
            case TokenKind.NAME:
                return expressions.property_of(token.text)
            case TokenKind.STRING:
                return expressions.constant(token.text)
            case TokenKind.WHOLE:
                return expressions.constant(_whole(token.text))
            case TokenKind.FLOATING:
                return expressions.constant(_floating(token.text))
            case TokenKind.WORD if token.text in _BOOLEANS:
                return expressions.boolean_constant(_BOOLEANS[token.text])
        raise self._tokens.unexpected(token)


def _whole(text: str) -> int:
    digits = text.rstrip("lL")
    try:
        number = whole_number(digits, LONG_MAX)
    except ValueError as error:
        raise FilterRefused(
            f'java.lang.NumberFormatException: For input string: "{digits}"'
        ) from error
    return number if number <= INTEGER_MAX else Long(number)


def _floating(text: str) -> float:
    number = floating_number(text)
    if number > _FLOATING_MAX:
        raise cannot(f"{text} is greater than {java_text(_FLOATING_MAX)}")
    if number < _FLOATING_MIN:
        raise cannot(f"{text} is less than 4.9E-324")
    return number
