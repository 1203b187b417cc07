"""What happens in a corpus, in its order, and what must be found.

Everything up to `before` is older than the grace time of the judgement, what comes after is not.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.reconcile.corpus.application import (
    FAILS_ONCE,
    GIFTS,
    HANGS,
    LEASE_SECONDS,
    REJECTED,
    TOPIC,
)
from tests.reconcile.corpus.scene import LOYALTY, PAYMENTS, Expected, Scene
from tests.waiting import until

JUDGED_AFTER = timedelta(minutes=1)


@dataclass(frozen=True)
class Corpus:
    """Ledgers that the real system made, and what is true of them.

    `databases`: their URLs. `expected`: (message id, group) to verdict. `kinds`: ids by what
    happened to them. Judged at `as_of` with `grace`, what was placed last is the only young one.
    """

    databases: tuple[str, str]
    store: Path
    expected: Expected
    kinds: dict[str, list[str]]
    as_of: datetime
    grace: timedelta


def both(verdict: str) -> dict[str, str]:
    return {PAYMENTS: verdict, LOYALTY: verdict}


def make_corpus(
    directory: Path,
    databases: tuple[str, str],
    redis: str,
    *,
    orders: int,
    segment_size: int = 128 * 1024,
) -> Corpus:
    """Let it all happen.

    Args:
        directory: gets the store.
        databases: URLs of two empty ones.
        redis: URL of an empty Redis.
        orders: how many orders nothing happens to.
        segment_size: of the broker's commit log.
    """
    with Scene(directory, *databases, redis, segment_size) as scene:
        ghosts = _what_retention_took(scene)
        _what_was_consumed(scene, orders)
        _what_a_worker_died_of(scene)
        _what_a_group_skipped(scene)
        _what_nobody_has_read(scene, *ghosts)
        _what_was_never_sent(scene)
        before = _now()
        until(lambda: _now() > before + timedelta(milliseconds=5))
        scene.place(2, "young", both("in flight"))
        change_rows(scene)
    # The judgement is a minute later: no lease is running, no file is being written.
    as_of = _now() + JUDGED_AFTER
    return Corpus(
        databases,
        scene.broker.store,
        scene.expected,
        dict(scene.kinds),
        as_of,
        as_of - before,
    )


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _what_retention_took(scene: Scene) -> tuple[str, str]:
    """Orders whose segment is gone before anybody consumed them; return the ids of two halves."""
    scene.wait_until_sent(scene.place(3, "expired", both("expired")))
    voided = scene.place(1, "expired, voided", both("voided"))
    scene.wait_until_sent(voided)
    scene.fill_segment()
    scene.age_first_segment()
    scene.void(voided)
    # The application answers for its halves as soon as it has sent one.
    scene.place(2, "half", both("settled"), half=True)
    return scene.begin_half(b'{"id": 0}'), scene.begin_half(b'{"id": 0}')


def _what_was_consumed(scene: Scene, orders: int) -> None:
    scene.worker.start()
    good = scene.place(orders, "good", both("settled"))
    retried = scene.place(3, "failed once", both("settled"), payments=FAILS_ONCE)
    rejected = scene.place(
        4,
        "rejected",
        {PAYMENTS: "dead-lettered", LOYALTY: "settled"},
        payments=REJECTED,
    )
    twice = scene.place(
        2, "rejected twice", both("dead-lettered"), payments=REJECTED, loyalty=REJECTED
    )
    # Sent for a group whose subscription leaves it out: it has no tag.
    filtered = scene.place(
        2, "filtered", both("settled") | {GIFTS: "not consumed"}, required=(GIFTS,)
    )
    scene.wait_until_consumed(PAYMENTS, good + retried + filtered)
    scene.wait_until_consumed(LOYALTY, good + retried + rejected + filtered)
    scene.wait_for_dead_letters(PAYMENTS, len(rejected) + len(twice))
    scene.wait_for_dead_letters(LOYALTY, len(twice))


def _what_a_worker_died_of(scene: Scene) -> None:
    """Begun by a worker that is killed; the group's offset is set behind it in the next part."""
    hung = scene.place(2, "hung", {PAYMENTS: "settled", LOYALTY: "stuck"}, loyalty=HANGS)
    both_ways = scene.place(
        1,
        "hung, rejected",
        {PAYMENTS: "dead-lettered", LOYALTY: "stuck"},
        loyalty=HANGS,
        payments=REJECTED,
    )
    scene.wait_until_consumed(PAYMENTS, hung)
    scene.wait_until_consumed(LOYALTY, hung + both_ways, state=0)
    scene.wait_for_dead_letters(PAYMENTS, 7)
    scene.wait_until_committed(PAYMENTS)  # else it is consumed once more, in another database
    scene.worker.kill()


def _what_a_group_skipped(scene: Scene) -> None:
    skipped = scene.place(2, "skipped", {PAYMENTS: "settled", LOYALTY: "not consumed"})
    lost = scene.place(1, "skipped, lost", {PAYMENTS: "settled", LOYALTY: "lost by the broker"})
    voided = scene.place(2, "voided too late", {PAYMENTS: "voided but consumed", LOYALTY: "voided"})
    scene.wait_until_sent(skipped + lost + voided)
    scene.void(voided)
    orphans = [sent.message_id for sent in scene.send_aside(TOPIC, [b'{"id": 0}'] * 2)]
    scene.kinds["orphan"] += orphans
    scene.expect(orphans, payments="orphan")
    scene.reset_to_end(LOYALTY)
    mq = scene.consume_here()
    scene.wait_until_consumed(PAYMENTS, skipped + lost + voided + orphans)
    # Nothing lies behind these two when the group moves to another database and reads them again.
    twice = scene.place(2, "twice", {PAYMENTS: "duplicate effect", LOYALTY: "settled"})
    for group in (PAYMENTS, LOYALTY):
        scene.wait_until_consumed(group, twice)
    mq.close()
    scene.consume_elsewhere(PAYMENTS, twice)
    verdict = {PAYMENTS: "consumed, not confirmed"}
    scene.wait_until_sent(scene.place(1, "consumed, not told", verdict, required=(PAYMENTS,)))
    scene.consume_and_die()
    scene.lose(lost)


def _what_nobody_has_read(scene: Scene, ghost: str, back: str) -> None:
    waiting = scene.place(3, "waiting", both("waiting"))
    delayed = scene.place(1, "delayed", both("in flight"), delay=timedelta(hours=1))
    lost = scene.place(3, "lost", both("lost by the broker"))
    lost_and_voided = scene.place(1, "lost, voided", both("voided"))
    scene.wait_until_sent(waiting + delayed + lost + lost_and_voided)
    scene.place_and_die(2, "unmarked", both("sent, not marked"))
    scene.lose(lost + lost_and_voided)
    scene.void(lost_and_voided)
    unread = [sent.message_id for sent in scene.send_aside(TOPIC, [b'{"id": 0}'])]
    scene.kinds["orphan"] += unread
    scene.expect(unread, nobody="orphan")
    # The producer of the halves is dead: the broker asks, and there is no such transaction. One of
    # them is sent by somebody nevertheless.
    question = "SELECT count(*) FROM rmq_message_stub WHERE message_id IN :ids"
    scene.until(question, 2, ids=[ghost, back])
    scene.kinds["rolled back"].append(ghost)
    scene.expect([ghost], nobody="voided")
    scene.send_aside(TOPIC, [b'{"id": 0}'], message_id=back)
    scene.kinds["rolled back, visible"].append(back)
    scene.expect([back], nobody="orphan")


def _what_was_never_sent(scene: Scene) -> None:
    scene.broker.stop()
    scene.place(2, "unsent", both("not sent"))
    scene.void(scene.place(1, "unsent, voided", both("voided")))


def change_rows(scene: Scene) -> None:
    """Change rows as no act of ours does: what is expected of the orders changes with them."""
    good = iter(scene.kinds["good"])

    def change(kind: str, verdicts: dict[str, str], count: int, *statements: str) -> None:
        ids = [next(good) for _ in range(count)]
        for statement in statements:
            scene.change(statement, ids=ids)
        scene.kinds[kind] += ids
        scene.expect(ids, **verdicts)

    unconfirm = "UPDATE rmq_message_stub SET status = 0 WHERE message_id IN :ids"
    forget = "DELETE FROM rmq_consume_log WHERE message_id IN :ids AND consumer_group = 'payments'"
    differ = "UPDATE rmq_message_stub SET content = '{}' WHERE message_id IN :ids"
    without_log = {PAYMENTS: "confirmed without a log", LOYALTY: "settled"}
    change("log missing", without_log, 2, forget)
    change("differs", both("content differs"), 2, differ)
    change("unconfirmed, differs", both("content differs"), 1, unconfirm, differ)
    not_consumed = {PAYMENTS: "not consumed", LOYALTY: "settled"}
    change("unconfirmed, log missing", not_consumed, 1, unconfirm, forget)
    scene.kinds["good"] = list(good)


__all__ = ["LEASE_SECONDS", "Corpus", "make_corpus"]
