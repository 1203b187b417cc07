"""The story of `reliable-mq demo`, step by step.

    start -> orders, faults -> drain -> (lose) -> reconcile -> (drain, reconcile) -> check

Exit code 0 only when every step held.
"""

import random
import secrets
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from reliable_mq.cli.demo.acts import (
    DemoOptions,
    check,
    lose_messages,
    print_what_it_took,
    reconcile,
    replay_orders,
    resume,
)
from reliable_mq.cli.demo.baskets import BASKETS_OF_THE_YEAR
from reliable_mq.cli.demo.faults import plan_faults
from reliable_mq.cli.demo.processes import DemoFailed
from reliable_mq.cli.demo.screen import Screen
from reliable_mq.cli.demo.stage import DemoStage

TRAFFIC_SECONDS = 45.0  # the default run's share of its three minutes
RATE_MIN = 10.0


def command(
    orders: Annotated[
        int, typer.Option(min=50, max=BASKETS_OF_THE_YEAR, help="How many orders to replay.")
    ] = 2_000,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the faults; one is drawn when not given.")
    ] = None,
    lose: Annotated[
        int, typer.Option(min=0, max=20, help="Delete so many stored messages, then repair.")
    ] = 0,
    kills: Annotated[
        int, typer.Option(min=0, max=10, help="How often to kill broker, workers and producer.")
    ] = 3,
    out: Annotated[
        Path, typer.Option(help="Directory for store, logs and reports; it is emptied.")
    ] = Path("demo-output"),
) -> None:
    """Replay real orders through faults and prove that nothing was lost or doubled."""
    seed = secrets.randbelow(1_000_000) if seed is None else seed
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
    if not held:
        raise typer.Exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
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
