"""The order of the pages in the site. A test compares it with the pages that exist."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TypeAlias

from tests.documentation.api_pages import PAGES as API_PAGES
from tests.documentation.deployment_pages import PAGES as DEPLOYMENT_PAGES
from tests.documentation.subjects import subjects

from reliable_mq.cli.main import VERBS

TUTORIAL: tuple[str, ...] = ("first_order", "web", "workers", "migrations", "tests")
HOW_TO: tuple[str, ...] = (
    *(
        "questions",
        "questions_production",
        "questions_features",
        "questions_operating",
        "questions_patterns",
        "questions_handlers",
        "questions_testing",
        "questions_names",
        "error_texts",
        "develop",
        "consumers",
        "own_session",
        "dead_letters",
        "console",
        "console_work",
        "console_log_in",
        "on_call",
        "log_lines",
        "pause_consumer",
        "handle_again",
        "idempotent_requests",
        "external_calls",
        "webhooks",
        "rate_limits",
        "redis",
        "fastapi",
        "fastapi_session",
        "django",
        "django_production",
        "flask",
        "litestar",
        "sqlmodel",
        "celery_beside",
        "faststream",
        "alembic",
        "plain_sql",
        "other_languages",
    ),
    *(
        "several_databases",
        "move_database",
        "apache_cluster",
        "official_clients",
        "access_control",
        "ordering",
        "consume_by_message",
        "delays",
        "periodic",
        "retries",
        "sagas",
    ),
    "renaming",
    *("payload_changes", "payload_schemas", "asyncapi", "cloud_events", "testing", "type-checking"),
    *(
        "deployment",
        "kubernetes",
        "tls",
        "replication",
        "failover",
        "sizing",
        "upgrades",
        "backups",
        "reconciliation_daily",
    ),
    "personal_data",
    *("from_celery", "from_brokers", "from_procrastinate", "from_own_outbox"),
)
REFERENCE: tuple[str, ...] = (
    *(
        "options",
        "settings",
        "client_settings",
        "errors",
        "exit_codes",
        "limits",
        "metrics",
        "log_events",
        "tables",
    ),
    *(
        "extras",
        "versions",
        "outbox",
        "consuming",
        "resend",
        "escalation",
        "retention",
        "databases",
        "doctor",
    ),
    *(
        "observation",
        "administration",
        "client",
        "client_sending",
        "client_consuming",
        "client_by_message",
        "broker",
        "grpc_endpoint",
        "broker_properties",
    ),
    *("quotas", "access_codes"),
    *("reconciliation_verdicts", "reconciliation_results", "spark_sources"),
    "audit",
    *("state_machines", "glossary"),
)
EXPLANATION: tuple[str, ...] = (
    *("promises", "protocol", "crashes", "why_a_broker", "comparison"),
    *("guarantees", "half_messages", "reconciliation", "security"),
)
PROJECT = ("project/architecture.md", "project/changelog.md", "project/style.md")

Entry: TypeAlias = "tuple[str, str | list[Entry]]"


def navigation(pages: Mapping[str, str]) -> list[Entry]:
    """Return titles and pages of the navigation; titles are the pages' own."""

    def entry(place: str) -> Entry:
        return title_of(pages[place]), place

    def section(folder: str, names: tuple[str, ...]) -> list[Entry]:
        return [entry(f"{folder}/{name}.md") for name in ("index", *names)]

    decisions = sorted(each for each in pages if each.startswith("decisions/"))
    examples = sorted(each for each in pages if each.startswith("examples/"))
    evidence = sorted(each for each in pages if each.startswith("evidence/"))
    api: Entry = ("API", section("reference/api", tuple(API_PAGES)))
    commands: Entry = ("Commands", section("reference/commands", tuple(VERBS)))
    files = section("reference/deployment", tuple(DEPLOYMENT_PAGES))
    deployment: Entry = ("Deployment files", files)
    answers: Entry = ("Answers by subject", section("answers", tuple(subjects())))
    how_to = section("how-to", HOW_TO)
    reference = section("reference", REFERENCE)
    return [
        ("Start", "index.md"),
        ("Tutorial", section("tutorial", TUTORIAL)),
        ("How-to", [how_to[0], answers, *how_to[1:]]),
        ("Reference", [reference[0], api, commands, deployment, *reference[1:]]),
        ("Explanation", section("explanation", EXPLANATION)),
        (
            "Project",
            [
                *(entry(each) for each in PROJECT),
                ("Examples", [entry(each) for each in examples]),
                ("Evidence", [entry(each) for each in evidence]),
                ("Decisions", [entry(each) for each in decisions]),
            ],
        ),
    ]


def title_of(text: str) -> str:
    """Return the first heading of a page, without marks."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return re.sub(r"[`*]", "", found[1]) if found else ""


def places(entries: list[Entry]) -> list[str]:
    """Return the pages of a navigation, in order."""
    found: list[str] = []
    for _, target in entries:
        found += [target] if isinstance(target, str) else places(target)
    return found


def folder_of(place: str) -> str:
    """Return the first folder of a page; "": it lies at the top."""
    parts = PurePosixPath(place).parts
    return parts[0] if parts[1:] else ""
