"""The options of `reliable-mq reconcile`, in the groups of its help."""

from typing import Annotated

import typer

from reliable_mq.cli import log_options
from reliable_mq.cli.credentials import FORMS, credentials
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel

LEDGERS = "The ledgers"
TIME = "What is judged"
OUTPUT = "Output"
REPAIR = "Repair"
PEOPLE = "Notifications"

EVERY = "60s"

Databases = Annotated[
    list[str] | None,
    typer.Option(
        "--db",
        metavar="URL",
        callback=credentials,
        help="SQLAlchemy URL of a database; repeat it for all that have stubs or consume logs."
        " The first one stores the record of the run. Default: those of --app, or"
        f" RELIABLE_MQ_DATABASE. {FORMS}",
        rich_help_panel=LEDGERS,
    ),
]
Application = Annotated[
    str,
    typer.Option(
        "--app",
        metavar="MODULE:OBJECT",
        help="The application: its databases and its broker; default: RELIABLE_MQ_APP.",
        show_default=False,
        rich_help_panel=LEDGERS,
    ),
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="[MODULE:OBJECT]",
        help="The application, the same as --app.",
        show_default=False,
        rich_help_panel=LEDGERS,
    ),
]
Key = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        help="Also print the verdicts on the messages with this message key, or message id.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="[NAME=]DIR",
        help="Store directory of a broker, running or not; for several brokers, repeat it with"
        " their names.",
        rich_help_panel=LEDGERS,
    ),
]
SlaveStores = Annotated[
    list[str] | None,
    typer.Option(
        "--slave-store",
        metavar="[NAME=]DIR",
        help="Store directory of a slave of such a broker, running or not: the run says what the"
        " slave lacks of its master's log; repeat it for several.",
        rich_help_panel=LEDGERS,
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT;…",
        help="Name servers of a running cluster, alone or beside a --store of other brokers. Its"
        " brokers are read by pulling, as those of --broker without a --store.",
        rich_help_panel=LEDGERS,
    ),
]
Partial = Annotated[
    bool,
    typer.Option(
        help="Judge without brokers that cannot be read; then the exit code is never 0.",
        rich_help_panel=LEDGERS,
    ),
]
BrokerName = Annotated[
    str,
    typer.Option(
        help="Name of the broker that owns the store; other brokers are refused.",
        rich_help_panel=LEDGERS,
    ),
]
TablePrefix = Annotated[
    str,
    typer.Option(
        help="Prefix of the tables; default: that of --app, RELIABLE_MQ_TABLE_PREFIX, or rmq_.",
        show_default=False,
        rich_help_panel=LEDGERS,
    ),
]
DbShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of the time that a worker may read from a database; it sleeps the rest.",
        rich_help_panel=LEDGERS,
    ),
]
Ledgers = Annotated[
    str,
    typer.Option(
        metavar="URI",
        help="Judge an export, as of its time, instead of --db and --store.",
        rich_help_panel=LEDGERS,
    ),
]
Managed = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC",
        help="A topic that is managed though it has no stubs; repeat it for several. Later runs"
        " know it, too.",
        rich_help_panel=LEDGERS,
    ),
]
Unmanaged = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC",
        help="A topic without stubs that is not managed any more; repeat it for several.",
        rich_help_panel=LEDGERS,
    ),
]
Export = Annotated[
    str,
    typer.Option(
        metavar="URI",
        help="A new folder for the ledgers as Parquet; the run judges this export.",
        rich_help_panel=LEDGERS,
    ),
]
Since = Annotated[
    str,
    typer.Option(help="Only messages since: ISO time (UTC), or -24h.", rich_help_panel=TIME),
]
Until = Annotated[
    str,
    typer.Option(help="Only messages before: ISO time (UTC), or -1h.", rich_help_panel=TIME),
]
Grace = Annotated[
    str, typer.Option(help="Messages younger than this count as in flight.", rich_help_panel=TIME)
]
Increment = Annotated[
    bool,
    typer.Option(
        "--increment",
        help="Continue where the last increment ended: read the changes since then, judge them and"
        " open messages. With --full: read everything, and continue from there.",
        rich_help_panel=TIME,
    ),
]
Full = Annotated[
    bool,
    typer.Option("--full", help="With --increment: read everything again.", rich_help_panel=TIME),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Run increments until stopped, one output line for each.",
        rich_help_panel=TIME,
    ),
]
Every = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="With --follow: how often, such as 60s or 10m.",
        rich_help_panel=TIME,
    ),
]
Format = Annotated[
    LogFormat | None,
    log_options.format_option("With --follow: ", rich_help_panel=OUTPUT),
]
Level = Annotated[
    LogLevel | None,
    log_options.level_option("With --follow: ", rich_help_panel=OUTPUT),
]
Forget = Annotated[
    bool,
    typer.Option(
        "--forget",
        help="Do not run: only let retention remove rows without waiting for increments.",
        rich_help_panel=TIME,
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="How much memory the run may use, 4g or 1500m; default: four fifths of the machine.",
        rich_help_panel=OUTPUT,
    ),
]
KeepRuns = Annotated[
    int,
    typer.Option(min=1, help="How many runs' folders are kept in --out.", rich_help_panel=OUTPUT),
]
Out = Annotated[
    str,
    typer.Option(
        help="Folder, or URI, for report.html, summary.json, verdicts.parquet.",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=OUTPUT)
]
FindingsMax = Annotated[
    int,
    typer.Option(
        min=0,
        help="How many findings the database keeps (the oldest); the Parquet files have all.",
        rich_help_panel=OUTPUT,
    ),
]
Prometheus = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="Replace FILE with the run's metrics, for node_exporter's textfile collector.",
        rich_help_panel=OUTPUT,
    ),
]
Repair = Annotated[
    str,
    typer.Option(
        help="plan: print what would be done; apply: do it.",
        metavar="plan|apply",
        rich_help_panel=REPAIR,
    ),
]
RepairOnly = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VERDICT",
        help="Only findings of this verdict, like not-sent; repeat it for several.",
        rich_help_panel=REPAIR,
    ),
]
Void = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VERDICT",
        help="Void the stubs of findings with this verdict; repeat it for several.",
        rich_help_panel=REPAIR,
    ),
]
RepairRate = Annotated[
    str,
    typer.Option(
        metavar="N/s|N/m|N/h",
        help="At most this many stubs in a second, minute or hour.",
        rich_help_panel=REPAIR,
    ),
]
Broker = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT;…",
        help="Name servers; without a --store, their brokers are read by pulling. With --repair"
        " apply, due stubs are sent at once. Default, to read: that of --app, or"
        " RELIABLE_MQ_BROKER.",
        show_default=False,
        rich_help_panel=LEDGERS,
    ),
]
Tell = Annotated[
    bool,
    typer.Option(
        "--tell",
        help="Let the notifiers report new findings to people; see RELIABLE_MQ_ESCALATION_….",
        rich_help_panel=PEOPLE,
    ),
]
