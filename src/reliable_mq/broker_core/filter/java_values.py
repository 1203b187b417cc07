"""Values of filter expressions, compared like Java's boxed types.

A value is a str, a bool, a float (`Double`), an int (`Integer`), a `Long`, or None.
Source: Apache RocketMQ `ComparisonExpression.__compare`; Java's `Integer.valueOf`, `Long.valueOf`
and `Double.valueOf`.
"""

import math
import re
from decimal import Decimal
from functools import lru_cache

INTEGER_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Long(int):
    """A number beyond `Integer`; a property that is compared with it may have the same range."""


Value = str | bool | float | int | None

# Digits of any script, but only 16-bit characters: Java checks one char at a time.
_WHOLE = re.compile(r"[+-]?(?:(?![\U00010000-\U0010ffff])\d)+")
_DIGITS_MAX = 64  # leading zeros are allowed
# Each digit is in one place only: else a text of digits that is no number takes time by its square.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_SHORT, _TRUE = 512, "true"
_NAMED = {"NaN": math.nan, "Infinity": math.inf}
_CONTROLS_AND_SPACE = "".join(map(chr, range(0x21)))  # what Java's String.trim removes


def whole_number(text: str, largest: int) -> int:
    """Return the number that Java's `Integer.valueOf` or `Long.valueOf` returns.

    Raises:
        ValueError: where Java throws NumberFormatException.
    """
    if len(text) <= _DIGITS_MAX and _WHOLE.fullmatch(text):
        number = int(text)
        if -largest - 1 <= number <= largest:
            return number
    raise ValueError(f"{text[:80]!r} is not a whole number in Java's range")


def floating_number(text: str) -> float:
    """Return the number that Java's `Double.valueOf` returns.

    Raises:
        ValueError: where Java throws NumberFormatException.
    """
    return (_of_long_text if len(text) > _SHORT else _floating)(text)


def _floating(text: str) -> float:
    trimmed = text.strip(_CONTROLS_AND_SPACE)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" else trimmed)
        except OverflowError:
            return -math.inf if trimmed[0] == "-" else math.inf
    sign = -1.0 if trimmed[:1] == "-" else 1.0
    named = _NAMED.get(trimmed.removeprefix("-" if sign < 0 else "+"))
    if named is None:
        raise ValueError(f"{text[:80]!r} is not a floating-point number")
    return sign * named


# An expression may name a property five hundred times, and 32 KB of digits take 80 us to read.
_of_long_text = lru_cache(maxsize=64)(_floating)


def compare_floating(left: float, right: float) -> int:
    """Compare like Java's `Double.compare`: NaN equals NaN and is the largest; -0.0 < 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, right) < 0) - int(math.copysign(1, left) < 0)
    return int(math.isnan(left)) - int(math.isnan(right))


def compare(left: Value, right: Value) -> int:
    """Compare two values that are not null, as Apache does; the result is below 0, 0 or above 0.

    A string is converted to the type of the other value. A boolean and a number differ, and the
    result is always -1.

    Raises:
        ValueError: when a string does not parse as the other's type.
        TypeError: when a boolean is compared with a string on its right: Java's cast fails.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return _order(left, right)
        if isinstance(right, bool):
            return int(len(left) == len(_TRUE) and left.lower() == _TRUE) - int(right)
        return _compare_numbers(_number(left, right), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise TypeError("a boolean cannot be compared with a string on its right")
        return int(left) - int(right) if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        return _compare_numbers(left, _number(right, left))
    return _compare_numbers(left, right)


def _number(text: str, like: Value) -> float:
    if isinstance(like, float):
        return floating_number(text)
    return whole_number(text, LONG_MAX if isinstance(like, Long) else INTEGER_MAX)


def _compare_numbers(left: Value, right: Value) -> int:
    assert isinstance(left, int | float)  # noqa: S101 - for type checkers
    assert isinstance(right, int | float)  # noqa: S101 - for type checkers
    if isinstance(left, float) or isinstance(right, float):
        return compare_floating(float(left), float(right))
    return (left > right) - (left < right)


def _order(left: str, right: str) -> int:
    return (left > right) - (left < right)


def java_text(value: Value) -> str:
    """Return a value as Java's `toString` writes it."""
    if not isinstance(value, float) or math.isinf(value) or math.isnan(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    power = int(exponent) + len(text) - 1
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{power}"
