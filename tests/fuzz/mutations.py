"""Changing what was right: bytes, header fields and JSON values that are wrong in likely ways."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

_LENGTHS = tuple(
    value.to_bytes(4, "big", signed=True)
    for value in (-(2**31), -1, 0, 1, 4, 127, 128, 2**15, 2**16, 2**24 - 1, 2**24, 2**31 - 1)
)
_WORDS = (b"\0", b"\1", b"\2", b"\xff", b"{", b'"', b"$ref", b"\xed\xa0\x80", b"||", b"%RETRY%")
NUMBERS = (
    *("0", "1", "-1", "3", "127", "32767", "65536", "2147483647", "-2147483648", "2147483648"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "1" * 40),
    *("", " ", "01", "+1", "1.5", "1e3", "NaN", "null", "true", "false", "0x10", "١٢"),
)
TEXTS = (
    *("", "a", "*", "%", "||", "a||b", "%RETRY%", "%DLQ%g", "TBW102", "SCHEDULE_TOPIC_XXXX"),
    *("RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "../../x", "a/b", "\0", "é" * 300),
    *("x" * 128, "x" * 300, "x" * 40_000, "DELAY\x0199\x02", "TAGS\x01a\x02", "\x01\x02\x01"),
    *("TIMER_DELAY_SEC\x011\x02", "TRAN_MSG\x01true\x02PGROUP\x01g\x02", "{}", "[]", "😀"),
)


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF))


def _cut(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data) + 1) :]


def _remove(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randint(1, 16)]


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice((*_WORDS, random.randbytes(random.randint(1, 8))))


def _repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = data[at : at + random.randint(1, 64)] * random.choice((1, 2, 50))


def _lie(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at : at + 4] = random.choice(_LENGTHS)


def _zero(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    size = min(random.choice((4, 20, 512, 4096)), len(data) - at)
    data[at : at + size] = bytes(size)


_WAYS: Sequence[Callable[[Random, bytearray], None]] = (
    *(_flip, _flip, _set, _cut, _remove, _insert, _repeat, _lie, _lie, _zero),
)


def mutated(random: Random, data: bytes, *, keeps_size: bool = False) -> bytes:
    """Return `data` with a few changes."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        way = random.choice((_flip, _set, _lie, _zero)) if keeps_size else random.choice(_WAYS)
        way(random, changed)
    return bytes(changed[: len(data)]) if keeps_size else bytes(changed)


def odd_text(random: Random) -> str:
    """Return a field's value that somebody did not think of."""
    return random.choice(random.choice((NUMBERS, TEXTS)))


def mutated_fields(random: Random, fields: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return header fields of which some are missing, odd or new."""
    changed = dict(fields)
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        name = random.choice([*changed, random.choice(names)])
        if random.random() < 0.2:
            changed.pop(name, None)
        else:
            changed[name] = odd_text(random)
    return changed


def mutated_json(random: Random, value: Any, *, depth: int = 0) -> Any:
    """Return a JSON value of which some parts have another type, are missing or nested deeply."""
    if random.random() < (0.1 if depth else 0.02):
        return _odd_value(random)
    if isinstance(value, dict):
        kept = {k: mutated_json(random, v, depth=depth + 1) for k, v in value.items()}
        if kept and random.random() < 0.1:
            kept.pop(random.choice(list(kept)))
        return kept
    if isinstance(value, list):
        items = [mutated_json(random, item, depth=depth + 1) for item in value]
        return items * random.choice((0, 1, 1, 1, 1, 3)) if items else items
    return value


def _odd_value(random: Random) -> Any:
    deep: Any = None
    for _ in range(random.choice((1, 50))):
        deep = {"a": [deep]}
    plain: tuple[Any, ...] = (
        None,
        True,
        0,
        -1,
        2**31,
        2**63,
        2**70,
        1.5,
        "",
        "x" * 300,
        [],
        {},
        [None],
    )
    return random.choice((*plain, deep, random.choice(NUMBERS), random.choice(TEXTS)))
