"""The reference pages of the API: which name is on which page; mkdocstrings does the rest."""

from importlib import import_module

from tests.documentation.declared import code, first_sentence, table

import reliable_mq

PAGES = {
    "application": (
        "The application",
        (
            *("ReliableMQ", "Transaction", "AsyncTransaction", "Topic", "IdempotentCall"),
            *("injected", "Tick", "PeriodicState", "schema"),
        ),
    ),
    "outcomes": ("What a handler says", ("Consumed", "Retry", "Reject")),
    "messages": (
        "Messages",
        ("Message", "ReceivedMessage", "CloudEvent", "MessageQueue", "SendResult", "Decision"),
    ),
    "client": (
        "Client and settings",
        ("Client", "AsyncClient", "ClientSettings", "Credentials", "TLS", "Subscription", "Sql"),
    ),
    "receiving": (
        "Receiving and pulling",
        ("SimpleConsumer", "AsyncSimpleConsumer", "PullConsumer", "AsyncPullConsumer"),
    ),
    "middleware": (
        "Middleware",
        (
            *("Middleware", "Sending", "Delivery", "Ending", "Recall", "Skip"),
            *("LoggingMiddleware", "PrometheusMiddleware", "OpenTelemetryMiddleware"),
            "MessageTraceMiddleware",
        ),
    ),
    "administration": ("Administration", ("TopicChange", "GroupChange")),
    "sending": ("Sending without a transaction", ()),
    "frameworks": ("Frameworks", ()),
    "testing": ("Testing", ()),
}
"""Page -> its title, and the names of `reliable_mq` on it."""

ELSEWHERE = {
    "application": (
        "reliable_mq.app.thread_upkeep.ResendControl",
        "reliable_mq.doctor.finding.Finding",
    ),
    "administration": (
        "reliable_mq.client.administering.asyncio_admin.AsyncAdmin",
        "reliable_mq.client.administering.asyncio_topics.AsyncTopics",
        "reliable_mq.client.administering.asyncio_admin.AsyncGroups",
        "reliable_mq.client.administering.asyncio_admin.AsyncOffsets",
        "reliable_mq.client.administering.asyncio_messages.AsyncMessages",
        "reliable_mq.client.administering.asyncio_messages.AsyncDeadLetters",
        "reliable_mq.client.administering.asyncio_accounts.AsyncAccounts",
        "reliable_mq.client.administering.cluster_reply.ClusterReply",
    ),
    "sending": (
        "reliable_mq.outbox.asyncio_producer.Producer",
        "reliable_mq.outbox.asyncio_listeners.TransactionListener",
    ),
    "frameworks": (
        "reliable_mq.contrib.asgi.lifespan",
        "reliable_mq.contrib.asgi.AnswerDatabaseAway",
        "reliable_mq.contrib.fastapi.transaction",
        "reliable_mq.contrib.fastapi.sync_transaction",
        "reliable_mq.contrib.fastapi.health_router",
        "reliable_mq.contrib.starlette.health_routes",
        "reliable_mq.contrib.litestar.LitestarMQ",
        "reliable_mq.contrib.flask.FlaskMQ",
        "reliable_mq.contrib.django.application.DjangoMQ",
        "reliable_mq.contrib.health.liveness",
        "reliable_mq.contrib.health.readiness",
        "reliable_mq.contrib.health.Health",
    ),
    "testing": (
        "reliable_mq.testing.message_world.MessageWorld",
        "reliable_mq.testing.faults.Faults",
        "reliable_mq.testing.crash_points.crash_here",
        "reliable_mq.testing.crash_switch.CrashSwitch",
        "reliable_mq.testing.local_servers.LocalPostgres",
        "reliable_mq.testing.local_servers.LocalValkey",
        "reliable_mq.testing.local_valkey_groups.LocalValkeyCluster",
        "reliable_mq.testing.local_valkey_groups.LocalValkeySentinel",
        "reliable_mq.testing.contracts.LeaseStoreContract",
        "reliable_mq.testing.database_contract.DatabaseContract",
    ),
}
"""Page -> what a public name returns or is given, and what has a module of its own."""

NOTES = {
    "client": "`Client` is for threads, `AsyncClient` for asyncio. Both have the same verbs.",
    "receiving": "The verbs of `SimpleConsumer` and `PullConsumer` are those of their asyncio "
    "twins, without `await`.",
    "administration": "`AsyncClient.admin` has these parts. `Client.admin` has the same, without "
    "`await`.",
    "sending": "`mq.producer` is a `Producer`. It writes no stub.",
    "frameworks": "Each module needs the extra of its framework. `reliable_mq.contrib.fastapi` and "
    "`reliable_mq.contrib.starlette` have the same `lifespan`. `reliable_mq.contrib.django.mq` is "
    "a `DjangoMQ`. How to: [FastAPI](../../how-to/fastapi.md), [Flask](../../how-to/flask.md), "
    "[Litestar](../../how-to/litestar.md), [Django](../../how-to/django.md).",
    "testing": "The fixture `message_world` makes a `MessageWorld`, see "
    "[testing an application](../../how-to/testing.md).",
}
WITH_FIELDS = {"messages", "administration"}
"""Pages of values: their fields are shown, too, though their class explains them."""


def page(name: str) -> str:
    """Return a page: a directive of mkdocstrings for each name."""
    title, names = PAGES[name]
    options = "    options:\n      show_if_no_docstring: true\n" if name in WITH_FIELDS else ""
    shown = [*(f"reliable_mq.{each}" for each in names), *ELSEWHERE.get(name, ())]
    blocks = "\n".join(f"::: {each}\n{options}" for each in shown)
    source = "All names are imported from `reliable_mq`." if names else ""
    return f"# {title}\n\n{NOTES.get(name, '')}\n\n{source}\n\n{blocks}"


def index_page() -> str:
    """Return the list of all public names."""
    rows = [
        [
            f"[{code(name)}]({page}.md#reliable_mq.{name})",
            first_sentence(getattr(reliable_mq, name)),
        ]
        for page, (_, names) in PAGES.items()
        for name in names
    ]
    rows += [
        [f"[{code(path.rpartition('.')[2])}]({page}.md#{path})", first_sentence(_made(path))]
        for page, paths in ELSEWHERE.items()
        for path in paths
    ]
    return (
        "# API\n\n`from reliable_mq import …` has these names. Nothing else of the package is "
        "public, "
        "but `reliable_mq.errors`, `reliable_mq.settings`, `reliable_mq.contrib` and "
        "`reliable_mq.testing`.\n\n" + table(("name", "what it is"), sorted(rows))
    )


def _made(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
