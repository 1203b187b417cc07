"""Expressions of a filter: which operands each accepts, and how each is evaluated.

An expression has a Python callable from a message's properties to a value. Logic has three values;
None is "unknown". Where Java would throw, evaluation raises ValueError or TypeError.
Source: Apache RocketMQ `ComparisonExpression`, `LogicExpression`, `UnaryExpression`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, reduce
from typing import NamedTuple, cast

from reliable_mq.broker_core.filter.java_values import (
    Long,
    Value,
    compare,
    floating_number,
    java_text,
)
from reliable_mq.broker_core.filter.tokens import FilterRefused, cannot
from reliable_mq.plain_text import cut

DEPTH_MAX = 100  # nested evaluations; Apache has no limit but its stack
_SHOWN_MAX = 1_000  # characters of a part; BETWEEN shows its operand twice, also a nested one

Properties = Mapping[str, str]
Evaluation = Callable[[Properties], Value]


class ExpressionRole(Enum):
    """The role of an expression in the surrounding expression."""

    PROPERTY = "property"
    CONSTANT = "constant"
    BOOLEAN_CONSTANT = "boolean constant"  # TRUE, FALSE and NULL
    BOOLEAN = "boolean"
    NEGATED = "negated"


class Expression(NamedTuple):
    """A part of a filter. `value` is the value of a constant; `depth` is the nesting depth.

    `shown` returns the expression as Apache prints it in messages.
    """

    role: ExpressionRole
    evaluate: Evaluation
    shown: Callable[[], str]
    value: Value = None
    depth: int = 1

    @property
    def is_constant(self) -> bool:
        return self.role in (ExpressionRole.CONSTANT, ExpressionRole.BOOLEAN_CONSTANT)

    @property
    def is_boolean(self) -> bool:
        return self.role in (ExpressionRole.BOOLEAN, ExpressionRole.BOOLEAN_CONSTANT)


def _made(
    role: ExpressionRole, evaluate: Evaluation, shown: Callable[[], str], *parts: Expression
) -> Expression:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise FilterRefused(f"more than {DEPTH_MAX} nested expressions")
    return Expression(role, evaluate, shown, None, depth)


def _infix(left: Expression, sign: str, right: Expression) -> Callable[[], str]:
    return lambda: cut(f"({left.shown()} {sign} {right.shown()})", _SHOWN_MAX)


def _prefix(word: str, part: Expression) -> Callable[[], str]:
    return lambda: cut(f"({word} {part.shown()})", _SHOWN_MAX)


def constant(value: Value) -> Expression:
    """Return a number or a string."""
    doubled = value.replace("'", "''") if isinstance(value, str) else ""
    text = f"'{doubled}'" if isinstance(value, str) else java_text(value)
    return Expression(ExpressionRole.CONSTANT, lambda _: value, lambda: text, value)


def boolean_constant(value: bool | None) -> Expression:
    """Return TRUE, FALSE or NULL."""
    text = "NULL" if value is None else str(value).upper()
    return Expression(ExpressionRole.BOOLEAN_CONSTANT, lambda _: value, lambda: text, value)


def property_of(name: str) -> Expression:
    """Return a message's property: a string, or None when the message does not have it."""
    return Expression(
        ExpressionRole.PROPERTY, lambda properties: properties.get(name), lambda: name
    )


def as_boolean(part: Expression) -> Expression:
    """Return an expression that may be used as a condition. A property alone is never true.

    Raises:
        FilterRefused: for a number, a string or a negation.
    """
    if part.is_boolean:
        return part
    if part.role is not ExpressionRole.PROPERTY:
        raise FilterRefused(
            "org.apache.rocketmq.filter.parser.ParseException: "
            f"Expression will not result in a boolean value: {part.shown()}"
        )
    evaluate = part.evaluate
    return _made(
        ExpressionRole.BOOLEAN, lambda p: None if evaluate(p) is None else False, part.shown, part
    )


def negative(part: Expression) -> Expression:
    """Return -x for a number; None for any other value."""
    evaluate = part.evaluate

    def negated(properties: Properties) -> Value:
        value = evaluate(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return _made(ExpressionRole.NEGATED, negated, _prefix("-", part), part)


def not_(part: Expression) -> Expression:
    """Return NOT x."""
    evaluate = part.evaluate

    def inverted(properties: Properties) -> Value:
        value = evaluate(properties)
        return None if value is None else not value

    return _made(ExpressionRole.BOOLEAN, inverted, _prefix("NOT", part), part)


def any_of(parts: Sequence[Expression]) -> Expression:
    """Return x OR y OR ...: parts after the first true one are not evaluated."""
    return _first(parts, decides=True)


def all_of(parts: Sequence[Expression]) -> Expression:
    """Return x AND y AND ...: parts after the first false one are not evaluated."""
    return _first(parts, decides=False)


def _first(parts: Sequence[Expression], *, decides: bool) -> Expression:
    evaluations = [part.evaluate for part in parts]

    def joined(properties: Properties) -> Value:
        result: Value = not decides
        for evaluate in evaluations:
            value = evaluate(properties)
            if value is decides:
                return decides
            if value is None:
                result = None
        return result

    return _made(ExpressionRole.BOOLEAN, joined, _joined(parts, decides=decides), *parts)


def _joined(parts: Sequence[Expression], *, decides: bool) -> Callable[[], str]:
    sign = "||" if decides else "&&"

    def join(left: str, right: str) -> str:
        return cut(f"({left} {sign} {right})", _SHOWN_MAX)

    return lambda: reduce(join, (part.shown() for part in parts))


def equal(left: Expression, right: Expression) -> Expression:
    """Return x = y.

    Raises:
        FilterRefused: when one side is NULL (use IS NULL), or when a boolean is before a constant
            of another type.
    """
    for part in (left, right):
        if part.is_constant and part.value is None:
            raise cannot("'NULL' cannot be compared.")
    if left.role is ExpressionRole.BOOLEAN_CONSTANT and right.role is ExpressionRole.CONSTANT:
        raise cannot(f"'{left.shown()}' cannot be compared with '{right.shown()}'")
    return _equal(left, right)


def is_null(part: Expression) -> Expression:
    """Return x IS NULL."""
    evaluate = part.evaluate
    return _made(
        ExpressionRole.BOOLEAN,
        lambda properties: evaluate(properties) is None,
        _infix(part, "==", boolean_constant(None)),
        part,
    )


def _equal(left: Expression, right: Expression) -> Expression:
    of_left, of_right = left.evaluate, right.evaluate

    def are_equal(properties: Properties) -> Value:
        one, other = of_left(properties), of_right(properties)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        return compare(one, other) == 0

    return _made(ExpressionRole.BOOLEAN, are_equal, _infix(left, "==", right), left, right)


_ORDERS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def ordered(sign: str, left: Expression, right: Expression) -> Expression:
    """Return x > y, x >= y, x < y or x <= y, for numbers, and properties that parse as numbers.

    Raises:
        FilterRefused: when one side is a string, a boolean or NULL.
    """
    for part in (left, right):
        is_number = part.role is ExpressionRole.CONSTANT and not isinstance(part.value, str)
        if part.is_boolean or (part.is_constant and not is_number):
            raise cannot(f"Value '{part.shown()}' cannot be compared.")
    of_left, compared = left.evaluate, _compared(sign, right)

    def is_ordered(properties: Properties) -> Value:
        return compared(of_left(properties), properties)

    return _made(ExpressionRole.BOOLEAN, is_ordered, _infix(left, sign, right), left, right)


def _compared(sign: str, right: Expression) -> Callable[[Value, Properties], Value]:
    """Return a function from the value of the left side, and the properties, to x > y."""
    of_right, order = right.evaluate, _ORDERS[sign]

    def compared(one: Value, properties: Properties) -> Value:
        if one is None:
            return None
        other = of_right(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = floating_number(one), floating_number(other)
        return cast("bool", order(compare(one, other), 0))

    return compared


def between(part: Expression, low: Expression, high: Expression) -> Expression:
    """Return x BETWEEN low AND high.

    Raises:
        FilterRefused: as in `ordered`; also when both bounds are constants and the upper one is
            below the lower one.
    """
    if low.is_constant and high.is_constant and None in (low.value, high.value):
        raise cannot("Illegal values of between, values can not be null!")
    part = _shown_once(part)
    bounds = [ordered(">=", part, low), ordered("<=", part, high)]
    if low.is_constant and high.is_constant and compare(high.value, low.value) < 0:
        raise cannot(
            f"Illegal values of between, left value({java_text(low.value)}) must less than or "
            f"equal to right value({java_text(high.value)})"
        )
    return _bounded(part, (_compared(">=", low), _compared("<=", high)), bounds, decides=False)


def not_between(part: Expression, low: Expression, high: Expression) -> Expression:
    """Return x NOT BETWEEN low AND high; see `ordered`."""
    part = _shown_once(part)
    bounds = [ordered("<", part, low), ordered(">", part, high)]
    return _bounded(part, (_compared("<", low), _compared(">", high)), bounds, decides=True)


def _shown_once(part: Expression) -> Expression:
    return part._replace(shown=cache(part.shown))


def _bounded(
    part: Expression,
    comparisons: tuple[Callable[[Value, Properties], Value], ...],
    bounds: Sequence[Expression],
    *,
    decides: bool,
) -> Expression:
    """Return the two bounds of x joined, but evaluate x once: it may be nested a hundred times."""
    of_part, (first, second) = part.evaluate, comparisons

    def bounded(properties: Properties) -> Value:
        one = of_part(properties)
        begin = first(one, properties)
        if begin is decides:
            return decides
        end = second(one, properties)
        return None if begin is None and end is not decides else end

    return _made(ExpressionRole.BOOLEAN, bounded, _joined(bounds, decides=decides), *bounds)


def is_one_of(part: Expression, words: Sequence[str], *, inverted: bool) -> Expression:
    """Return x [NOT] IN ('a', 'b').

    Raises:
        FilterRefused: when x is not a property.
    """
    if part.role is not ExpressionRole.PROPERTY:
        raise cannot(f"Expected a property for In expression, got: {part.shown()}")
    evaluate, wanted = part.evaluate, frozenset(words)

    def is_within(properties: Properties) -> Value:
        value = evaluate(properties)
        return None if value is None else (value in wanted) is not inverted

    word = "NOT IN" if inverted else "IN"
    shown = f" {word} ( {', '.join(words)} )"
    return _made(
        ExpressionRole.BOOLEAN, is_within, lambda: cut(part.shown() + shown, _SHOWN_MAX), part
    )


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def searched(word: str, part: Expression, text: str, *, inverted: bool) -> Expression:
    """Return x [NOT] CONTAINS, STARTSWITH or ENDSWITH 'text'.

    The result is false, never unknown, if x is not a string or the text is empty, also with NOT.
    """
    evaluate, search = part.evaluate, _SEARCHES[word]

    def is_found(properties: Properties) -> Value:
        if not text:
            return False
        value = evaluate(properties)
        return isinstance(value, str) and search(value, text) is not inverted

    return _made(
        ExpressionRole.BOOLEAN, is_found, _prefix(f"NOT {word}" if inverted else word, part), part
    )
