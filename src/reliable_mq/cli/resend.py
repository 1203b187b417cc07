"""`reliable-mq resend`: runs the resend scheduler of an application."""

from typing import Annotated, Any

import typer

from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.cli import database_options as options
from reliable_mq.cli import log_options, metrics
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.errors import UsageError
from reliable_mq.runtime.heartbeat import BeatingSignal, Heartbeat


@takes_options_of(options.named_place_of, "place")
def command(
    *,
    place: options.Place,
    broker: options.BrokerOfDb = "",
    once: Annotated[bool, typer.Option("--once", help="Do what is due once, then end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
    metrics_port: metrics.Port = 0,
    metrics_host: metrics.Host = metrics.HERE,
    log_format: log_options.Format = None,
    log_level: log_options.Level = None,
) -> None:
    """Send unconfirmed stubs again; escalate those sent too often."""
    if as_json and not once:
        raise UsageError("--json needs --once")
    log_options.note_shape(log_format)
    mq = options.application_of(place, "resend", broker=broker)
    log_options.write_log(log_format or mq.settings.log_format, log_level or mq.settings.log_level)
    if metrics_port:
        mq.register_metrics()
        metrics.serve_metrics(metrics_host, metrics_port)
    heart = Heartbeat()
    try:
        if once:
            _print(mq.resend_once(), as_json=as_json)
        else:
            with stop_on_signal() as stopped:
                mq.databases.wait_until_reached(stopped)  # not ready yet: no beat
                mq.resend_forever(BeatingSignal(stopped, heart))
    finally:
        heart.end()
        mq.close()


def _print(counts: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    """Print the counts; with several databases, each under its name."""
    if as_json:
        say_json(counts if len(counts) > 1 else next(iter(counts.values())))
        return
    for database, numbers in counts.items():
        text = ", ".join(f"{name} {number}" for name, number in numbers.items())
        say(f"{database}: {text}" if len(counts) > 1 else text)
