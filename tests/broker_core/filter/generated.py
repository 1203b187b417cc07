"""Filter expressions and properties by chance: mostly sound, some absurd, always the same."""

import random
from typing import NamedTuple

NAMES = ("a", "b", "c", "Price", "$x_1", "nothing")
STRINGS = ("abc", "b", "", "it's", "true", "10", "1.5", "tr\u00fcb")
NUMBERS = ("0", "1", "10", "7L", "2147483647", "2147483648", "9223372036854775807", "1.5", ".5")
MORE_NUMBERS = ("5.", "1e3", "2.5E-3", "10.0", "3000000000")
BAD_NUMBERS = ("0.0", "1e999", "9223372036854775808", "0x1F", "007", "1e-400", "0L")
VALUES = (
    *("abc", "b", "it's", "true", "TRUE", "false", "0", "1", "10", "010", "+10", "-1", "1.5"),
    *("1.5f", " 1.5 ", "1e1", "-0.0", "0.0", "NaN", "Infinity", "-Infinity", "0x1p3", "0x1.8p1d"),
    *("2147483647", "2147483648", "-9223372036854775808", "9223372036854775808", "1_0", "x y"),
    *("\u0661\u0660", "tr\u00fcbe", "1e999", "-", "+", ".", "1e", "NaNf", "\u20031", "\x1f7\x1f"),
)


class Case(NamedTuple):
    text: str
    properties: dict[str, str]


def cases(count: int, seed: int) -> list[Case]:
    """Return `count` expressions, each with a message's properties."""
    rng = random.Random(seed)
    return [Case(_expression(rng), _properties(rng)) for _ in range(count)]


def _properties(rng: random.Random) -> dict[str, str]:
    return {name: rng.choice(VALUES) for name in NAMES[:-1] if rng.random() < 0.8}


def _expression(rng: random.Random) -> str:
    text = _logic(rng, 3)
    if rng.random() < 0.1:
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at] + rng.choice((" ", "(", ")", "'", "NOT ", "=", "--", "!", "/**/")) + text[at:]
        )
    if rng.random() < 0.05:
        text += rng.choice((" b = 2", " )", " #", " -- end\n", " /* end */", " NOT", " IS", " 'x"))
    return text


def _logic(rng: random.Random, depth: int) -> str:
    if not depth or rng.random() < 0.4:
        return _predicate(rng)
    match rng.randrange(4):
        case 0:
            return f"{_word(rng, 'NOT')} ({_logic(rng, depth - 1)})"
        case 1:
            return f"({_logic(rng, depth - 1)})"
        case _:
            word = _word(rng, rng.choice(("AND", "OR")))
            return f"{_logic(rng, depth - 1)} {word} {_logic(rng, depth - 1)}"


def _predicate(rng: random.Random) -> str:
    left, inverted = _operand(rng), rng.choice(("", "NOT "))
    match rng.randrange(7):
        case 0 | 1:
            return f"{left} {rng.choice(('=', '<>'))} {_operand(rng)}"
        case 2:
            return f"{left} {rng.choice(('<', '<=', '>', '>='))} {_operand(rng)}"
        case 3:
            return f"{left} {inverted}{_word(rng, 'BETWEEN')} {_number(rng)} AND {_operand(rng)}"
        case 4:
            words = ", ".join(_string(rng) for _ in range(rng.randint(1, 6)))
            return f"{rng.choice(NAMES)} {inverted}{_word(rng, 'IN')} ({words})"
        case 5:
            return f"{left} {_word(rng, 'IS')} {inverted}{_word(rng, 'NULL')}"
        case _:
            word = _word(rng, rng.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")))
            return f"{left} {inverted}{word} {_string(rng)}"


def _operand(rng: random.Random) -> str:
    match rng.choices(range(6), (10, 5, 4, 2, 1, 1))[0]:
        case 0:
            return rng.choice(NAMES)
        case 1:
            return _number(rng)
        case 2:
            return _string(rng)
        case 3:
            return _word(rng, rng.choice(("TRUE", "FALSE", "TRUE", "NULL")))
        case 4:
            return f"({_predicate(rng)})"
        case _:
            return rng.choice("+-") + rng.choice(("", " ", "-", "+")) + rng.choice((*NAMES, "5"))


def _number(rng: random.Random) -> str:
    if rng.random() < 0.03:
        return rng.choice(BAD_NUMBERS)
    sign = rng.choice(("", "", "", "-", "+", "- "))
    return sign + rng.choice((*NUMBERS, *MORE_NUMBERS))


def _string(rng: random.Random) -> str:
    return "'" + rng.choice(STRINGS).replace("'", "''") + "'"


def _word(rng: random.Random, word: str) -> str:
    return rng.choice((word, word, word.lower(), word.capitalize()))
