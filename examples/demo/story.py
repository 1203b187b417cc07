"""The story of `reliable-mq demo`, step by step.

    start -> orders, faults -> drain -> (lose) -> reconcile -> (drain, reconcile) -> check

Receives what the command line said; hands on whether every step held.
"""

import random
import signal
from pathlib import Path
from types import FrameType

from examples.demo.acts import (
    DemoOptions,
    check,
    lose_messages,
    print_what_it_took,
    reconcile,
    replay_orders,
    resume,
)
from examples.demo.faults import plan_faults
from examples.demo.processes import DemoFailed
from examples.demo.screen import Screen
from examples.demo.stage import DemoStage

TRAFFIC_SECONDS = 45.0  # the default run's share of its three minutes
RATE_MIN = 10.0


def tell(orders: int, seed: int, lose: int, kills: int, out: Path) -> bool:
    """Play the whole story on the screen, and return whether every step held.

    Args:
        orders: how many are replayed.
        seed: what is left to chance is drawn from it.
        lose: how many stored messages are deleted.
        kills: how often broker, workers and producer are killed, each.
        out: emptied and filled, see `DemoStage`.
    """
    rng = random.Random(seed)  # noqa: S311 - it must be repeatable, not secret
    rate = max(RATE_MIN, orders / TRAFFIC_SECONDS)
    options = DemoOptions(orders=orders, rate=rate, lose=lose, rng=rng)
    screen = Screen()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        held = _play(options, kills, seed, out, screen)
    except DemoFailed as failure:
        screen.plain(f"\nFAILED: {failure}")
        held = False
    screen.plain(f"\n{screen.seconds:.0f} s in all; logs, store and reports are in {out}/")
    return held


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)  # `make` sends a second one
    raise KeyboardInterrupt


def _play(options: DemoOptions, kills: int, seed: int, out: Path, screen: Screen) -> bool:
    faults = plan_faults(options.orders, kills, options.rng)
    screen.headline(f"reliable_mq demo: {options.orders} orders, seed {seed}")
    screen.plain("\n".join(f"  planned: {fault}" for fault in faults))
    with DemoStage(out) as stage:
        screen.headline("Starting PostgreSQL, Valkey, broker, two workers, resend scheduler")
        stage.start()
        screen.line(f"everything runs; orders are placed at {options.rate:.0f} a second")

        screen.headline("Replaying the grocer's orders, while processes die")
        began = screen.seconds
        done = replay_orders(stage, options, faults, screen)
        seconds = screen.seconds - began
        screen.line(f"{options.orders} orders had both effects after {seconds:.0f} s")

        orders = options.orders
        lost: set[str] = set()
        if options.lose:
            screen.headline(f"Deleting {options.lose} stored messages from under the broker")
            orders, lost = lose_messages(stage, options, screen)

        screen.headline("Reconciling three ledgers in Spark")
        held = reconcile(stage, "reconcile", lost, screen)
        if lost:
            screen.headline("Sending again what was lost, and reconciling once more")
            resume(stage, orders, screen)
            held = reconcile(stage, "reconcile-after-repair", set(), screen) and held

        screen.headline("Checking the outcome in plain SQL against the parquet file")
        held = check(stage, orders, lost, screen) and held
        print_what_it_took(stage, done, screen)
    return held
