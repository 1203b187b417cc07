"""What `reliable-mq demo` takes on its command line.

Receives the options; hands them to `story`, which is imported only then, so that `--help` does not
wait for drivers and Arrow. Exit code 0 only when every step held.
"""

import secrets
from pathlib import Path
from typing import Annotated

import typer

BASKETS_OF_THE_YEAR = 155_848


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
    from examples.demo.story import tell  # noqa: PLC0415 - not for `--help`

    if not tell(orders, secrets.randbelow(1_000_000) if seed is None else seed, lose, kills, out):
        raise typer.Exit(1)
