"""The pages that are made from the code leave nothing of it out."""

import re
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from tests.documentation import api_pages, errors_page, metrics_page, settings_page, tables_page
from tests.documentation.column_meanings import OF_TABLES
from tests.documentation.commands_page import CODES_OF_COMMANDS, commands_of, verb_page
from tests.documentation.declared import cell, field_comments, parameters, section
from tests.documentation.extras_page import PURPOSES, extras, packages_of
from tests.documentation.options_page import DECLARATIONS
from tests.documentation.staging import DOCS, GENERATED
from tests.reconcile.test_report import summary

import reliable_mq
import reliable_mq.cli.main
from reliable_mq import ClientSettings, Transaction
from reliable_mq.cli.main import VERBS
from reliable_mq.outbox.message_options import StubOptions
from reliable_mq.reconcile.report.prometheus_text import prometheus_text
from reliable_mq.settings import ClusterSettings, Settings
from reliable_mq.telemetry.log_events import PARTS
from reliable_mq.telemetry.metrics import METRICS


def cells(text: str, row: str) -> list[str]:
    """Return the cells of the row whose first cell has a name."""
    (line,) = [each for each in text.splitlines() if each.startswith(f"| `{row}`")]
    return [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_each_setting_has_its_variable_type_default_and_meaning(name: str) -> None:
    section_of = settings_page.page().partition(f"\n### {name}\n\n")[2].partition("\n#")[0]
    meaning, _, facts = section_of.partition("\n\n")

    assert meaning.endswith(".")
    wanted = rf"Variable `RELIABLE_MQ_{name.upper()}`, type \S.*, default `.+`"
    assert re.match(wanted, facts)


def test_the_bounds_of_a_setting_are_shown() -> None:
    text = settings_page.page()

    assert (
        "RELIABLE_MQ_RESEND_COUNT_MAX`, type `int`, default `16`, at least 1, at most 1000." in text
    )


@pytest.mark.parametrize("each", msgspec.structs.fields(ClientSettings), ids=lambda each: each.name)
def test_each_setting_of_a_client_has_its_type_default_and_meaning(
    each: msgspec.structs.FieldInfo,
) -> None:
    assert all(cells(settings_page.client_page(), each.name))


def test_a_comment_belongs_to_the_next_field_only() -> None:
    comments = field_comments(ClusterSettings)

    assert comments["access_key"] == "the account, where a cluster has access control: its name"
    assert comments["client"].startswith("other settings of the client: a `ClientSettings`, or")


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_is_on_the_page_of_its_verb_with_all_options(verb: str) -> None:
    text = verb_page(verb)

    for name, command in commands_of(verb):
        assert f"reliable-mq {name} " in text
        assert command.help
        for each in command.params:
            if getattr(each, "hidden", False):
                continue
            assert cell(each.help)[1:30] in text, (name, each.name)
            assert each.param_type_name == "argument" or each.opts[0] in text, (name, each.name)


def test_each_command_that_ends_with_a_code_of_its_own_says_so() -> None:
    cli = Path(reliable_mq.cli.main.__file__).parent
    ending = {
        verb
        for verb, each in VERBS.items()
        if "typer.Exit(" in (cli / f"{each.module}.py").read_text()
    }

    assert ending <= CODES_OF_COMMANDS.keys() <= VERBS.keys()


def test_each_error_is_in_the_tree_and_has_a_row() -> None:
    names = set(errors_page.classes())

    assert {each.name for each in errors_page.drawn()} == names
    assert errors_page.TO_DO.keys() == names
    for name in names - {"ReliableMQError"}:
        _, parent, fault, again, when, _ = cells(errors_page.page(), name)
        assert parent, name
        assert fault, name
        assert again in {"yes", "no"}
        assert when, name


def test_each_table_has_its_purpose_and_all_columns() -> None:
    text = tables_page.page()

    for name, each in tables_page.tables().items():
        _, _, rest = text.partition(f"\n## {name}\n\n")
        purpose, _, columns = rest.partition("\n\n| column")
        assert purpose.strip(), name
        shown = columns.partition("\n## ")[0]
        assert [column.name for column in each.columns] == re.findall(
            r"^\| `(\w+)`", shown, re.MULTILINE
        )


def test_each_column_that_plain_sql_may_write_is_explained() -> None:
    stubs = tables_page.tables()["rmq_message_stub"]

    assert [column.name for column in stubs.columns if not column.doc] == []


def test_each_meaning_belongs_to_a_column_that_exists() -> None:
    found = {name.removeprefix("rmq_"): each for name, each in tables_page.tables().items()}

    for table, meanings in OF_TABLES.items():
        assert meanings.keys() <= set(found[table].columns.keys()), table


def test_each_metric_has_a_kind_labels_and_a_meaning() -> None:
    text = metrics_page.page()

    for each in METRICS.values():
        if each.source != "reconcile":
            assert all(cells(text, each.name))
    written = prometheus_text(summary(), 0.0)
    for name, _ in metrics_page.of_reconciliation():
        assert cells(text, name)[1]
        assert f"# TYPE {name} gauge" in written


def test_each_public_name_is_on_one_page() -> None:
    shown = [name for _, names in api_pages.PAGES.values() for name in names]

    assert sorted(shown) == sorted(reliable_mq.__all__)


def test_each_name_of_an_integration_is_on_its_page() -> None:
    shown = [api_pages._made(path) for path in api_pages.ELSEWHERE["frameworks"]]

    for name in ("asgi", "fastapi", "flask", "health", "litestar", "starlette"):
        module = import_module(f"reliable_mq.contrib.{name}")
        missing = [each for each in module.__all__ if getattr(module, each) not in shown]
        assert missing == [], name


def test_each_option_of_a_message_and_of_a_consumer_is_explained() -> None:
    text = GENERATED["reference/options.md"]()
    sent = section(Transaction.send, "Args")

    assert set(StubOptions.__annotations__) <= set(sent)
    for _, function in DECLARATIONS:
        for name in parameters(function):
            assert f"| `{name}` |" in text
            assert section(function, "Args")[name]


def test_each_extra_has_a_purpose_and_its_packages() -> None:
    assert PURPOSES.keys() == extras().keys()
    assert "alembic" in packages_of(extras()["migrations"])
    assert packages_of(["reliable-mq[observability]"]) >= {"prometheus-client", "opentelemetry-api"}


def test_each_extra_has_its_line_among_the_measured_sizes() -> None:
    """`make sizes` writes them."""
    shown = re.findall(r"reliable-mq\[([^]]+)\]", (DOCS / "evidence/install_sizes.md").read_text())
    assert shown == list(extras())


def test_no_page_that_is_made_lies_in_the_checkout() -> None:
    assert [place for place in GENERATED if (DOCS / place).exists()] == []


def test_each_line_of_level_error_or_critical_says_somewhere_what_to_do() -> None:
    page = (DOCS / "how-to" / "log_lines.md").read_text()
    grave = [
        each.name
        for events in PARTS.values()
        for each in events
        if each.level_name in {"ERROR", "CRITICAL"}
    ]

    assert len(grave) > 40
    assert [name for name in grave if f"`{name}`" not in page] == []
