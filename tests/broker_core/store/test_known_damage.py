"""What is known of damage: in order, named once, forgotten with its segment, never too much."""

from random import Random

from reliable_mq.broker_core.store import damage
from reliable_mq.broker_core.store.damage import DamagedRange, KnownDamage


def test_damage_that_is_known_is_no_news_and_ends_what_comes_before_it() -> None:
    known = KnownDamage()

    assert known.note_damage(200, 300) == DamagedRange(200, 300)
    assert known.note_damage(200, 300) is None
    assert known.note_damage(250, 400) is None
    assert known.note_damage(100, 260) == DamagedRange(100, 200)
    assert known.note_damage(300, 310) == DamagedRange(300, 310)
    assert known.stretches == [(100, 200), (200, 300), (300, 310)]
    assert (known.end_at(150), known.end_at(310), known.end_at(99)) == (200, 311, 100)


def test_what_is_known_is_what_was_noted_byte_by_byte() -> None:
    for seed in range(50):
        random = Random(seed)
        known, expected = KnownDamage(), [False] * 100
        for _ in range(random.randint(0, 12)):
            begin = random.randrange(99)
            end = random.randint(begin + 1, 100)
            stretch = known.note_damage(begin, end)
            known.invariants()
            assert (stretch is None) == expected[begin]
            for at in range(*(stretch or (0, 0))):
                assert not expected[at]
                expected[at] = True
        assert [known.covers(at) for at in range(100)] == expected
        for begin in range(99):
            end = random.randint(begin + 1, 100)
            assert known.is_excluded(begin, end) == (not any(expected[begin:end]))


def test_what_nobody_looked_at_is_not_excluded() -> None:
    known = KnownDamage()
    known.sought_from = 100
    assert known.is_excluded(100, 200)
    assert not known.is_excluded(99, 200)


def test_damage_is_forgotten_with_its_segment() -> None:
    known = KnownDamage()
    for begin in (0, 100, 200):
        known.note_damage(begin, begin + 50)

    known.forget_before(150)

    assert known.stretches == [(200, 250)]


def test_a_medium_that_dies_does_not_fill_the_memory() -> None:
    known = KnownDamage()
    for at in range(damage.STRETCHES_MAX + 10):
        known.note_damage(2 * at, 2 * at + 1)
    assert len(known.stretches) == damage.STRETCHES_MAX
