"""Requests that take long: their steps, and who comes next."""

from reliable_mq.broker_core.long_works import LongWorks, Work


def work(name: str, steps: int, done: list[str]) -> Work:
    for number in range(steps):
        done.append(f"{name}{number}")
        yield 100


def ended_at_once(done: list[str]) -> Work:
    done.append("at once")
    yield from ()


def test_a_turn_runs_as_many_steps_as_it_has_time_for() -> None:
    works, done = LongWorks(), list[str]()
    works.add(1, work("a", 5, done))

    works.run(200)
    assert done == ["a0", "a1"]
    works.run(1_000)
    assert done == ["a0", "a1", "a2", "a3", "a4"]
    assert not works.busy


def test_works_of_one_step_are_not_done_all_in_one_turn() -> None:
    works, done = LongWorks(), list[str]()
    for connection in range(100):
        works.add(connection, ended_at_once(done))

    works.run(100)

    assert 0 < len(done) < 10
    works.run(10_000)
    assert len(done) == 100


def test_connections_take_turns_work_by_work() -> None:
    works, done = LongWorks(), list[str]()
    for connection, name in ((1, "a"), (1, "b"), (2, "c"), (3, "d")):
        works.add(connection, work(name, 1, done))

    works.run(10_000)

    assert done == ["a0", "c0", "d0", "b0"]


def test_the_connection_of_the_last_step_is_known_when_its_work_is_done() -> None:
    works, done = LongWorks(), list[str]()
    for connection in (1, 2):
        works.add(connection, work("a", 1, done))
    works.run(100)
    assert works.last == 1
    works.run(10_000)
    assert works.last == 2


def test_a_connection_waits_until_all_of_its_works_are_done() -> None:
    works, done = LongWorks(), list[str]()
    works.add(1, work("a", 2, done))
    works.add(2, work("b", 1, done))

    assert 1 in works.busy
    assert 2 in works.busy
    works.run(100)
    assert 1 in works.busy
    works.run(1_000)
    assert 1 not in works.busy
    assert 2 not in works.busy


def test_what_was_begun_for_a_closed_connection_is_ended_and_the_rest_is_dropped() -> None:
    works, done = LongWorks(), list[str]()
    works.add(1, work("a", 2, done))
    works.add(1, work("b", 1, done))
    works.run(100)

    works.forget(1)
    works.run(1_000)

    assert done == ["a0", "a1"]
