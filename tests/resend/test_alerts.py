"""Whoever dies and whichever mail server is down: a person is told, once of each thing."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.app.kill_switch import KillSwitch
from tests.resend.worlds import KEPT, MAX, MemoryNotifier, World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate.alerts import CLOSED_LOOK_SECONDS, AlertCounts, LogNotifier
from reliable_mq.escalate.escalation import (
    DIGEST_ITEMS_MAX,
    Digest,
    Escalation,
    EscalationKind,
    NotifierState,
)
from reliable_mq.escalate.sql_alerts import SqlAlerts

DAY = 86_400.0
STEPS_MAX = 200
USED_UP = EscalationKind.USED_UP


def escalate(world: World, *names: str, now: float = 100.0, kind: EscalationKind = USED_UP) -> None:
    escalations = [
        Escalation(kind=kind, message_id=name.ljust(32, "0"), topic="orders", reason="because")
        for name in names
    ]
    with world.database.engine.begin() as connection:
        world.escalations.escalate(connection, escalations, now)


def test_what_a_stub_used_up_is_told_once_by_each_notifier(world: World) -> None:
    stub = world.write("a")
    world.change(stub, count=MAX, note="no route")
    assert world.scheduler.run_once(105.0).escalated == 1
    mail, hook = MemoryNotifier("mail"), MemoryNotifier("hook")

    alerts = world.alerts(mail, hook)
    runs = [alerts.run_once(float(now)) for now in range(106, 110)]

    assert runs == [AlertCounts(sent=2), AlertCounts(), AlertCounts(), AlertCounts()]
    assert mail.told == hook.told == [["a"]]
    (item,) = mail.digests[0].items
    assert item.reason == f"sent {MAX} times and not consumed by all of g; noted: no route"
    assert (mail.digests[0].application, mail.digests[0].total) == ("shop", 1)


def test_a_mail_server_that_is_down_loses_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    escalate(world, "a")
    world.notifier.is_down = True
    alerts = world.alerts()

    tried = [now for now in range(100, 200) if alerts.run_once(float(now)).failed]

    assert tried == [100, 105, 115, 135, 175]
    assert "digest" in caplog.text
    assert "mail server" in caplog.text
    # When the process was replaced by another meanwhile, and the server is back
    escalate(world, "b")
    world.notifier.is_down = False
    after = world.alerts(owner="another")
    for now in (254.0, 255.0, 256.0):
        after.run_once(now)

    # Then both are told, what was gathered before as it was gathered
    assert world.notifier.told == [["a"], ["b"]]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(3), Speechless()])
def test_whatever_a_notifier_raises_the_others_tell_and_it_is_tried_again(
    world: World, error: BaseException
) -> None:
    class Leaves(MemoryNotifier):
        has_left = False

        def tell(self, digest: Digest) -> None:
            if not self.has_left:
                self.has_left = True
                raise error
            super().tell(digest)

    escalate(world, "a")
    leaves, mail = Leaves("leaves"), MemoryNotifier("mail")
    alerts = world.alerts(leaves, mail)

    assert alerts.run_once(100.0) == AlertCounts(sent=1, failed=1)
    assert alerts.run_once(105.0) == AlertCounts(sent=1)
    assert leaves.told == mail.told == [["a"]]


def test_what_comes_within_the_cooldown_is_told_in_one_digest(world: World) -> None:
    mail = MemoryNotifier(cooldown=900.0)
    alerts = world.alerts(mail)
    escalate(world, "a")
    alerts.run_once(100.0)

    escalate(world, "b", now=101.0)
    alerts.run_once(102.0)
    escalate(world, "c", now=500.0)
    for now in (999.0, 1000.0, 1001.0):
        alerts.run_once(now)

    assert mail.told == [["a"], ["b", "c"]]
    (share,) = mail.digests[1].shares
    assert (share.kind, share.topic, share.count) == (USED_UP, "orders", 2)
    assert share.oldest == utc_datetime(101.0)


def test_a_digest_of_very_many_names_some_and_counts_all(world: World) -> None:
    escalate(world, *(f"m{number:04}." for number in range(2500)))

    world.alerts().run_once(100.0)

    (digest,) = world.notifier.digests
    assert (digest.total, len(digest.items)) == (2500, DIGEST_ITEMS_MAX)
    assert digest.items[0].message_id.startswith("m0000")


def test_a_digest_that_may_have_arrived_comes_again_as_it_was_under_its_id(world: World) -> None:
    escalate(world, "a")
    world.notifier.answers = False
    alerts = world.alerts()
    alerts.run_once(100.0)

    escalate(world, "b")
    world.notifier.answers = True
    alerts.run_once(105.0)
    alerts.run_once(106.0)

    first, again, other = world.notifier.digests
    assert first == again
    assert other.digest_id != first.digest_id
    assert world.notifier.told == [["a"], ["a"], ["b"]]


def test_what_was_dealt_with_before_it_was_told_needs_no_telling(world: World) -> None:
    mail = MemoryNotifier(cooldown=900.0)
    alerts = world.alerts(mail)
    escalate(world, "a")
    alerts.run_once(100.0)
    stub = world.write("b")
    world.change(stub, count=MAX)
    world.scheduler.run_once(105.0)
    alerts.run_once(106.0)
    with world.database.engine.begin() as connection:
        world.hands.void(connection, [stub], "ann", "known", 107.0)

    alerts.run_once(1001.0)

    assert mail.told == [["a"]]
    assert alerts.run_once(1002.0) == AlertCounts()


def test_two_processes_tell_once(world: World) -> None:
    for round_ in range(5):
        escalate(world, *(f"r{round_}-{number}." for number in range(20)))
        processes = [world.alerts(owner=name) for name in ("one", "two")]
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda each: each.run_once(100.0), processes))
        for each in processes:
            each.run_once(101.0)

    told = [name for digest in world.notifier.told for name in digest]
    assert sorted(told) == sorted(f"r{a}-{b}." for a in range(5) for b in range(20))


def test_who_lost_its_lease_writes_nothing(world: World) -> None:
    escalate(world, "a")
    database = world.database
    book = SqlAlerts(
        database.engine, database.escalations, database.alerts, database.notifiers, "shop"
    )

    late = book.claim("mail", 100.0, "late", 60.0, "d1")
    assert late is not None
    assert book.claim("mail", 159.9, "other", 60.0, "d2") is None
    taken = book.claim("mail", 160.0, "other", 60.0, "d2")

    assert taken == late
    assert not book.record_sent("mail", late, "late", 161.0, 0.0)
    assert book.record_sent("mail", taken, "other", 161.0, 0.0)


def test_a_notifier_that_is_gone_for_a_while_tells_what_it_missed(world: World) -> None:
    escalate(world, "a")
    mail, hook = MemoryNotifier("mail"), MemoryNotifier("hook")
    mail.is_down = True
    world.alerts(mail, hook).run_once(100.0)

    escalate(world, "b")
    world.alerts(hook).run_once(200.0)
    mail.is_down = False
    for now in (300.0, 301.0):
        world.alerts(mail).run_once(now)

    assert (mail.told, hook.told) == ([["a"], ["b"]], [["a"], ["b"]])


def test_what_was_first_seen_by_a_process_without_the_mail_is_mailed_all_the_same(
    world: World,
) -> None:
    """The old half of a rolling deploy, `resend --db` without variables, another application."""
    escalate(world, "a", "settled.")
    hook, mail = MemoryNotifier("log"), MemoryNotifier("mail")
    old, new = world.alerts(hook, owner="old"), world.alerts(hook, mail, owner="new")

    old.run_once(101.0)
    with world.database.engine.begin() as connection:
        world.escalations.close(connection, ["settled.".ljust(32, "0")], "void", 101.5)
    new.run_once(102.0)
    escalate(world, "b", now=103.0)
    old.run_once(104.0)
    new.run_once(105.0)

    # Then each notifier told what was open, once, whoever saw it first
    assert (mail.told, hook.told) == ([["a"], ["b"]], [["a", "settled."], ["b"]])


def test_what_is_committed_behind_a_later_one_is_told(postgres_url: str) -> None:
    world = World(postgres_url)
    alerts = world.alerts()
    early, late = (
        Escalation(kind=USED_UP, message_id=each.ljust(32, "0"), topic="orders", reason="r")
        for each in ("early", "late")
    )
    with world.database.engine.begin() as connection:
        world.escalations.escalate(connection, [early], 100.0)  # its row has the smaller number
        with world.database.engine.begin() as other:
            world.escalations.escalate(other, [late], 100.0)
        for now in (100.0, 101.0):
            alerts.run_once(now)

    for now in (102.0, 100.0 + CLOSED_LOOK_SECONDS):
        alerts.run_once(now)

    assert world.notifier.told == [["late"], ["early"]]
    world.database.close()


def test_the_same_thing_is_told_again_only_after_a_person_did_something(world: World) -> None:
    stub = world.write("a")
    alerts = world.alerts()
    for turn in range(3):
        now = 105.0 + 1000.0 * turn
        world.change(stub, count=MAX, resend_time=utc_datetime(now))
        world.scheduler.run_once(now)
        alerts.run_once(now)
        if turn == 1:
            with world.database.engine.begin() as connection:
                world.hands.retry(connection, [stub], "ann", "fixed", now + 1.0)

    assert world.notifier.told == [["a"], ["a"]]


def test_what_is_closed_and_told_is_forgotten_when_its_time_is_over(world: World) -> None:
    # Given one that was told, one that one notifier has yet to tell, and one that is open
    mail, hook = MemoryNotifier("mail"), MemoryNotifier("hook")
    for name in ("a", "b"):
        stub = world.write(name)
        world.change(stub, count=MAX, resend_time=utc_datetime(105.0))
    for _ in range(2):
        world.scheduler.run_once(105.0)
    alerts = world.alerts(mail, hook)
    alerts.run_once(106.0)
    hook.is_down = True
    escalate(world, "c", now=107.0)
    alerts.run_once(108.0)
    for name in ("a", "c"):
        with world.database.engine.begin() as connection:
            world.escalations.close(connection, [name.ljust(32, "0")], "void", 110.0)

    assert world.forget(109.0 + KEPT) == 0
    assert world.forget(200.0 + KEPT) == 1

    left = {row["message_id"].rstrip("0") for row in world.rows(world.database.escalations)}
    assert left == {"b", "c"}
    assert len(world.rows(world.database.alerts)) == 4
    world.alerts(mail, MemoryNotifier("hook")).run_once(300.0 + 2 * KEPT)
    assert world.forget(400.0 + 2 * KEPT) > 0
    left = {row["message_id"].rstrip("0") for row in world.rows(world.database.escalations)}
    assert "c" not in left


def test_how_the_notifiers_stand_is_told(world: World) -> None:
    mail, hook = MemoryNotifier("mail"), MemoryNotifier("hook")
    mail.is_down = True
    alerts = world.alerts(mail, hook)
    assert alerts.notifier_states() == {name: NotifierState(name=name) for name in ("mail", "hook")}
    escalate(world, "a", "b")

    alerts.run_once(100.0)

    at_100, at_105 = utc_datetime(100.0), utc_datetime(105.0)
    assert alerts.notifier_states() == {
        "hook": NotifierState(name="hook", next_time=at_100, told_date=at_100),
        "mail": NotifierState(
            name="mail", waiting=2, failures=1, next_time=at_105, note="OSError: mail server"
        ),
    }


def test_a_test_is_told_by_all_that_can_and_leaves_no_trace(world: World) -> None:
    mail, hook = MemoryNotifier("mail"), MemoryNotifier("hook")
    mail.is_down = True

    outcome = world.alerts(mail, hook).test("shop", 100.0)

    assert outcome == {"mail": "OSError: mail server", "hook": ""}
    (test,) = hook.digests
    assert test.headline == "[shop] this is a test: it has no escalations"
    assert world.rows(world.database.notifiers) == []


def test_rows_that_somebody_tampered_with_stop_nobody(world: World) -> None:
    escalate(world, "a")
    world.notifier.is_down = True
    alerts = world.alerts()
    alerts.run_once(100.0)
    table = world.database.escalations
    with world.database.engine.begin() as connection:
        connection.execute(table.update().values(kind="nonsense", topic="", reason=""))
    world.notifier.is_down = False

    alerts.run_once(110.0)
    assert world.notifier.digests[0].headline.endswith("1 nonsense")
    # and when somebody removed what was told, it is told once more with what came since
    world.notifier.is_down = True
    escalate(world, "b")
    alerts.run_once(120.0)
    with world.database.engine.begin() as connection:
        connection.execute(world.database.alerts.delete())
    world.notifier.is_down = False
    escalate(world, "c")
    for now in (200.0, 201.0):
        alerts.run_once(now)

    assert world.notifier.told == [["a"], ["a", "b", "c"]]


def test_the_log_has_a_line_for_each_and_says_what_to_do(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    escalate(world, *(f"m{number:02}." for number in range(DIGEST_ITEMS_MAX + 1)))

    with caplog.at_level(logging.ERROR):
        world.alerts(LogNotifier()).run_once(100.0)  # type: ignore[arg-type]

    assert len(caplog.messages) == DIGEST_ITEMS_MAX + 1
    assert "reliable-mq stub show m00" in caplog.messages[0]
    assert "51 messages wait for a person" in caplog.messages[-1]


class OfTelling(KillSwitch):
    """Counts what has happened since something was escalated: before that nothing is to be told."""

    def step(self, name: str) -> None:
        is_counted = name.startswith("after") and (self.names or "escalation" in name)
        if self.dead or is_counted:
            super().step(name)


def test_a_person_is_told_whichever_step_is_the_last(world: World) -> None:
    """Given a stub whose sends are used up, the n-th process dies at its n-th step."""
    died_at = []
    with world.mortal() as life:
        for step in range(STEPS_MAX):
            now = 105.0 + 1000.0 * step
            stub = world.write(f"s{step:03}.")
            world.change(stub, count=MAX, resend_time=utc_datetime(now))
            switch = OfTelling(step)
            life.notifier.tell = switch.inside(world.notifier.tell)  # type: ignore[method-assign]
            with life.dying_of(switch):
                life.new_scheduler(f"dead{step}").run_once(now)
                life.alerts(owner=f"dead{step}").run_once(now + 1.0)
            world.new_scheduler(f"next{step}").run_once(now + 100.0)
            world.alerts(owner=f"next{step}").run_once(now + 101.0)

            # Then it is told, perhaps twice, but then it is the same mail
            assert {stub} == {each.message_id for d in world.notifier.digests for each in d.items}
            assert len({digest.digest_id for digest in world.notifier.digests}) == 1
            assert world.row(stub)["resend_time"] is None
            world.notifier.digests.clear()
            if not switch.dead:
                break
            died_at.append(switch.names[-1])
            world.change(stub, status=1)
    assert len(died_at) >= 15, died_at
    assert "after tell" in died_at
