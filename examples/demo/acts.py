"""The acts of the demo: replay, drain, lose, reconcile, repair, check.

Each receives the stage and the screen; hands on whether it held, or raises `DemoFailed` where
going on makes no sense.
"""

import random
import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from examples.demo.checks import check_outcome, check_sequence
from examples.demo.counts import Counter
from examples.demo.faults import FaultAction, FaultTarget, PlannedFault
from examples.demo.loss import AcknowledgedMessage, delete_message, unconsumed_messages
from examples.demo.processes import DemoFailed
from examples.demo.screen import Screen
from examples.demo.stage import DemoStage
from examples.demo.supervisor import Supervisor
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.report.report_text import print_report

TICK_SECONDS = 0.1
PATIENCE_SECONDS = 15.0
COUNTING_REST = 10  # times as long as counting took
STALLED_SECONDS = 120.0
EXTRA_ORDERS_OF_A_LOSS = 10  # the messages that are deleted are chosen among so many each
WORKERS = (FaultTarget.WORKER_1, FaultTarget.WORKER_2)
GROUPS = ("payments", "loyalty")
GRACE = "1s"  # nothing is on its way any more when the ledgers are compared
# What a worker logs of a message that came again, see consume.sql_consume_transaction.
SUPPRESSED, POSTPONED = "suppressed duplicate", "postponed delivery"
STYLES = {True: "green", False: "bold red"}


class DemoOptions(NamedTuple):
    """What the command line said."""

    orders: int
    rate: float
    lose: int
    rng: random.Random


def replay_orders(
    stage: DemoStage, options: DemoOptions, faults: Sequence[PlannedFault], screen: Screen
) -> Tally[tuple[str, FaultAction]]:
    """Place the orders, do the faults, and wait until every order has had both effects.

    Raises:
        DemoFailed: when nothing moves for two minutes, or a process ended that nobody killed.
    """
    stage.start_producer(options.orders, options.rate, faults)
    supervisor = Supervisor(stage, faults, lambda text: screen.line(text, style="yellow"))
    _run_until_drained(stage, supervisor, options.orders, screen)
    return supervisor.done


def drain(stage: DemoStage, orders: int, screen: Screen) -> None:
    """Wait until every order has had both effects and its message is confirmed."""
    supervisor = Supervisor(stage, (), screen.line)
    supervisor.producer_finished = True
    _run_until_drained(stage, supervisor, orders, screen)


def _run_until_drained(
    stage: DemoStage, supervisor: Supervisor, orders: int, screen: Screen
) -> None:
    counter = Counter(stage.postgres.url)
    last, moved_at = None, time.monotonic()
    with screen.bars(orders) as bars:
        while True:
            asked = time.monotonic()
            progress = counter.progress()
            now = time.monotonic()
            supervisor.tick(progress.orders, now)
            bars.show(progress)
            if supervisor.is_finished and progress.is_drained(orders):
                break
            if progress != last:
                last, moved_at = progress, now
            elif now - moved_at > STALLED_SECONDS:
                raise DemoFailed(f"nothing has moved for {STALLED_SECONDS:.0f} s: {progress}")
            # Counting a year of orders takes a while; it must not keep the database busy.
            time.sleep(max(TICK_SECONDS, COUNTING_REST * (now - asked)))
    counter.close()


def lose_messages(stage: DemoStage, options: DemoOptions, screen: Screen) -> tuple[int, set[str]]:
    """Delete stored messages that nobody has consumed; return all orders and the lost ids.

    Workers and scheduler stand still meanwhile, so that the loss is the reconciliation's to find.
    """
    for target in (*WORKERS, FaultTarget.SCHEDULER):
        stage.processes[target].stop()
    screen.line("workers and scheduler are stopped")
    orders = options.orders + EXTRA_ORDERS_OF_A_LOSS * options.lose
    stage.start_producer(orders, options.rate)
    waiting = _wait_for_stored(stage, orders - options.orders)
    chosen = options.rng.sample(waiting, options.lose)
    for message in chosen:
        offset = delete_message(stage.store, message)
        screen.line(
            f"deleted {message.message_id}: queue {message.queue_id}, "
            f"queue offset {message.queue_offset}, log offset {offset}",
            style="red",
        )
    for target in WORKERS:
        stage.processes[target].start()
    screen.line("workers are started again; the scheduler is not")
    _wait_for_the_rest(stage, orders - options.lose)
    return orders, {message.message_id for message in chosen}


def _wait_for_stored(stage: DemoStage, count: int) -> list[AcknowledgedMessage]:
    deadline = time.monotonic() + STALLED_SECONDS
    while time.monotonic() < deadline:
        waiting = unconsumed_messages(stage.postgres.url)
        if len(waiting) == count and not stage.processes[FaultTarget.PRODUCER].is_running:
            return waiting
        time.sleep(TICK_SECONDS)
    raise DemoFailed(f"the broker did not acknowledge all of {count} messages")


def _wait_for_the_rest(stage: DemoStage, orders: int) -> None:
    counter = Counter(stage.postgres.url)
    deadline = time.monotonic() + STALLED_SECONDS
    while not (progress := counter.progress()).has_effects(orders):
        if time.monotonic() > deadline:
            raise DemoFailed(f"the workers did not consume what is left: {progress}")
        time.sleep(TICK_SECONDS)
    counter.close()


def reconcile(stage: DemoStage, name: str, lost: Collection[str], screen: Screen) -> bool:
    """Run the reconciliation, print its report, and say whether it found exactly the lost.

    What it finds it repairs: the lost messages are due again, and the scheduler sends them.
    """
    options = ("--grace", GRACE, *(("--repair", "apply") if lost else ()))
    summary = stage.reconcile(name, *options, while_waiting=_patience(screen))
    print_report(summary, screen.console)
    found = {
        (finding["message_id"], finding["consumer_group"], finding["verdict"])
        for finding in summary["findings"]
    }
    expected = {(lost_id, group, Verdict.LOST) for lost_id in lost for group in GROUPS}
    holds = found == expected and summary["findings_total"] == len(found)
    told = f"names exactly the {len(lost)} lost messages" if lost else "finds nothing wrong"
    screen.line(f"the reconciliation {told}: {'yes' if holds else 'NO'}", style=STYLES[holds])
    if lost:
        repaired: bool = summary["repair"]["changed"] == len(lost)
        told = f"makes {summary['repair']['changed']} of them due again"
        screen.line(f"the repair {told}: {'yes' if repaired else 'NO'}", style=STYLES[repaired])
        holds = holds and repaired
    return holds


def _patience(screen: Screen) -> Callable[[], None]:
    """Return what says every few seconds that something is still at work."""
    began = told = screen.seconds

    def tell() -> None:
        nonlocal told
        if screen.seconds >= told + PATIENCE_SECONDS:
            told = screen.seconds
            screen.line(f"Spark starts, reads and joins; {told - began:.0f} s so far")

    return tell


def resume(stage: DemoStage, orders: int, screen: Screen) -> None:
    """Start the scheduler again and wait until it has sent what was due."""
    stage.processes[FaultTarget.SCHEDULER].start()
    screen.line("the scheduler is started again")
    drain(stage, orders, screen)
    screen.line(f"{orders} orders had both effects")


def check(stage: DemoStage, orders: int, lost: Collection[str], screen: Screen) -> bool:
    """Compare the shop's tables with the parquet file; say whether everything holds.

    What was lost and sent again came late, so then the sequence is not looked at.
    """
    answers = check_outcome(stage.postgres.url, orders)
    if not lost:
        answers.append(check_sequence(stage.postgres.url))
    for answer in answers:
        verdict = "yes" if answer.holds else f"NO: {answer.broken} wrong, e.g. {answer.sample}"
        screen.line(f"{answer.claim} ({answer.counted}): {verdict}", style=STYLES[answer.holds])
    return all(answer.holds for answer in answers)


def print_what_it_took(
    stage: DemoStage, done: Tally[tuple[str, FaultAction]], screen: Screen
) -> None:
    """Print the faults and what the framework did about them."""
    counter = Counter(stage.postgres.url)
    progress = counter.progress()
    repeated = counter.repeated_attempts()
    counter.close()
    logs = [stage.log_of(worker).read_text() for worker in WORKERS]
    suppressed = sum(log.count(SUPPRESSED) for log in logs)
    redelivered = suppressed + repeated + sum(log.count(POSTPONED) for log in logs)
    screen.table(
        "What it took",
        ("", "times"),
        [
            *((f"{target} {action}", times) for (target, action), times in sorted(done.items())),
            ("resends (a stub sent once more)", progress.resends),
            ("redeliveries (a group got a message once more)", redelivered),
            ("suppressed duplicates (it had been consumed)", suppressed),
        ],
    )
