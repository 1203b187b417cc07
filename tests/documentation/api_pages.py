"""The reference pages of the API: which name is on which page; mkdocstrings does the rest."""

from tests.documentation.declared import code, first_sentence, table

import reliable_mq

PAGES = {
    "application": (
        "The application",
        ("ReliableMQ", "Transaction", "AsyncTransaction", "IdempotentCall", "schema"),
    ),
    "outcomes": ("What a handler says", ("Consumed", "Retry", "Reject")),
    "messages": (
        "Messages",
        ("Message", "ReceivedMessage", "MessageQueue", "SendResult", "Decision"),
    ),
    "client": (
        "The client",
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
}
"""Page -> its title, and the names of `reliable_mq` on it."""


def page(name: str) -> str:
    """Return a page: a directive of mkdocstrings for each name."""
    title, names = PAGES[name]
    blocks = "\n".join(f"::: reliable_mq.{each}\n" for each in names)
    return f"# {title}\n\nAll names are imported from `reliable_mq`.\n\n{blocks}"


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
    return (
        "# API\n\n`from reliable_mq import …` has these names. Nothing else of the package is "
        "public, "
        "but `reliable_mq.errors`, `reliable_mq.settings` and `reliable_mq.testing`.\n\n"
        + table(("name", "what it is"), sorted(rows))
    )
