"""The page about security: its numbers are those of the code, and tests hold what it promises."""

import re
from functools import cache
from pathlib import Path

import pytest
from bench import connection_attacks

from reliable_mq import limits
from reliable_mq.broker_core.clients import ClientLimits
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_reading import port_for_slaves
from reliable_mq.broker_core.requests import topics
from reliable_mq.cli import broker, metrics
from reliable_mq.runtime import server_connection

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "security.md"
DECISION = TESTS.parent / "docs" / "decisions" / "072-tls-in-our-own-listener.md"
MIB = 1024 * 1024

# What the page promises → the tests that fail when it is no longer true. The name of a test may be
# its begin.
HELD = {
    "no request reads or writes other files": "runtime/test_file_disk::no_path_leads_out",
    "messages without a signature have no effect": "app/test_signatures::a_forged_body_under",
    "the consume log in the database decides": (
        "idempotency/test_redis_rounds::redis_is_used_again",
        "model/test_model::who_believes_redis_over_a_database",
    ),
    "works: a signature has no time and no counter": (
        "access/test_signed_sends::a_captured_request_can_be_sent_again"
    ),
    "all accounts of the machine may use it": "documentation/test_security_page::servers_listen",
    "A signature on the broker's port has no date": "access/test_access_file::no_clock_matters",
    "A certificate has two": "runtime/test_tls_identities::a_client_leaves_a_server_whose",
    "gives a quota one second's worth at most": (
        "broker_core/test_quotas::a_clock_that_jumps_gives_one_burst_at_most"
    ),
    "The broker starts with an expired certificate": (
        "runtime/test_tls_reload::a_certificate_that_expires_while_it_is_used_is_told_loudly",
        "runtime/test_tls_identities::a_client_leaves_a_server_whose",
    ),
    "frames that do not come in whole": (
        "runtime/test_listener_memory::frames_that_do_not_come_in_whole_take_so_much",
        "runtime/test_floods::a_frame_that_is_announced_takes_no_memory",
    ),
    "answers that nobody reads": (
        "runtime/test_listener_memory::answers_that_nobody_reads_take_so_much"
    ),
    "pulls that wait": "broker_core/test_long_poll::what_waiting_pulls_take_of_the_memory",
    "groups and members that heartbeats invent": (
        "broker_core/test_heartbeat_sizes::heartbeats_of_all_connections_keep_so_much"
    ),
    "64 Mi characters of JSON each": (
        "broker_core/test_invented_names::invented_topics_fill_no_more",
        "broker_core/test_invented_names::invented_groups_fill_no_more",
    ),
    "registrations that wait at a name server": (
        "name_server/test_registration_queue::registrations_that_wait_take_so_much",
        "name_server/test_routes::a_registration_that_unpacks_beyond_all_reason",
    ),
    "20,000, and 10,000 of one address": (
        "runtime/test_connection_limits::too_many_connections_are_refused",
        "runtime/test_connection_limits::an_address_that_has_all_it_may",
    ),
    "end at the 300,000 of `maxTopics`": "access/test_creators::without_access_control_the_topics",
    "a user ends at 10,000": "access/test_creators::a_user_creates_so_many_topics",
    "a quarter of that while others send single requests": (
        "runtime/test_floods::turns_are_short_while_somebody_sends_single_requests"
    ),
    "The others come in between": (
        "runtime/test_floods::many_small_requests_in_one_read_let_others_in_between",
        "runtime/test_turns::peers_that_have_much_to_do_take_turns",
    ),
    "Requests that take long are worked on in steps": (
        "runtime/test_long_answers::a_query_by_key_is_answered_in_steps",
        "broker_core/test_long_works::connections_take_turns_work_by_work",
    ),
    "long answers are written in pieces": (
        "runtime/test_outbox::frames_come_out_in_order_in_pieces"
    ),
    "The broker unpacks no body": "::a_broker_has_no_way_to_unpack_a_body",
    "A client unpacks no more than a message may have": "::a_bomb_is_refused_and_takes_no_more",
    "are cut, and printed with control characters replaced": (
        "cli/test_foreign_text::names_rows_and_lines_print_nothing",
        "cli/test_foreign_text::a_commands_log_has_nothing",
    ),
    "have a budget of work": "broker_core/test_budgets::an_expression_that_is_too_large",
    "Redirects are not followed": "resend/test_http_notifier::any_other_answer_is_no",
    "Posts are signed": "resend/test_http_notifier::a_receiver_can_tell_that_a_digest_is_ours",
    "Not shown by us": (
        "cli/test_secrets::no_command_prints_a_secret_when_servers_are_there",
        "cli/test_secrets::no_repr_and_no_json_of_settings_has_a_secret",
        "cli/test_secrets::the_processes_of_a_command_show_no_secret",
        "reconcile/test_command::a_run_shows_no_password",
    ),
    "Local variables of our functions have none": "cli/test_secrets::no_frame_of_ours_shows",
    "A test gives every setting a secret of its own": (
        "cli/test_secrets::every_setting_that_may_have_a_secret_is_planted"
    ),
    "do not get the variables with credentials": (
        "cli/test_credentials::other_programs_get_no_variable_with_a_secret"
    ),
    "The broker notes who asked for a change": (
        "broker_core/test_audit::every_answered_request_is_audited",
        "broker_core/test_audit::no_code_that_sounds_like_a_change",
    ),
    "the file is JSON, one object a line": "cli/test_audit::",
    "a folder that the broker makes has mode 700": (
        "runtime/test_file_disk::a_new_store_can_be_read_by_its_owner_only"
    ),
    "keeps its rights": "runtime/test_file_disk::who_may_read_the_folder_may_read_what_is_new",
    "Signatures are compared in constant time": (
        "access/test_signed_sends::signatures_are_compared_in_constant_time"
    ),
    "fill the disk until the broker refuses sends": "broker_core/test_no_room::",
    "it proves its address (`haAllowedAddresses`)": (
        "replication/test_pair::with_access_control_only_slaves_at_allowed_addresses"
    ),
    "shows a certificate with a name of `haAllowedNames`": (
        "replication/test_slaves_prove_who_they_are::a_slave_needs_a_certificate"
    ),
    "but not to Apache's brokers": (
        "replication/test_slaves_prove_who_they_are::a_port_for_slaves_of_apache_stays_plain"
    ),
    "tells everybody the routes": (
        "runtime/test_guarded_registrations::strangers_change_nothing_and_everybody_may_ask"
    ),
    "`.github/constraints.txt` pins every package": (
        "packaging/test_sbom::every_requirement_has_a_pin"
    ),
    "builds the wheel with its software bill": "packaging/test_sbom::the_bill_lists_the_wheel",
    "Workflows have the least permissions": (
        "deployment/test_deployment_files::a_workflow_gives_no_job_more_rights"
    ),
}


@cache
def page() -> str:
    return " ".join(PAGE.read_text().split())


@cache
def names() -> set[str]:
    """All tests, as folder/file::name."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        place = path.relative_to(TESTS).with_suffix("").as_posix()
        for name in re.findall(r"^ *(?:async )?def test_(\w+)", path.read_text(), re.MULTILINE):
            found.add(f"{place}::{name}")
    return found


@pytest.mark.parametrize("promise", HELD)
def test_what_the_page_promises_is_held_by_a_test(promise: str) -> None:
    assert promise in page()
    held = HELD[promise]
    for test in (held,) if isinstance(held, str) else held:
        assert any(f"/{name}".count(test) for name in names()), test


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("frames that do not come in whole", f"{limits.RECEIVED_SIZE_MAX // MIB} MiB"),
        ("answers that nobody reads", f"{limits.UNSENT_SIZE_MAX // MIB} MiB"),
        ("answers that nobody reads", f"one answer of {limits.FRAME_SIZE_MAX // MIB} MiB"),
        ("pulls that wait", f"{limits.WAITING_PULLS_SIZE_MAX // MIB} MiB"),
        ("groups and members", f"{ClientLimits().size_of_all // MIB} MiB"),
        ("topics and groups", f"{limits.TABLE_SIZE_MAX // MIB} Mi characters"),
        ("registrations that wait", f"{limits.REGISTRATIONS_SIZE_MAX // MIB} MiB"),
        ("registrations that wait", f"unpacks to {limits.REGISTRATION_SIZE_MAX // MIB} MiB"),
        ("connections", f"{limits.CONNECTIONS_MAX:,}"),
        ("connections", f"{limits.CONNECTIONS_OF_ADDRESS_MAX:,} of one address"),
    ],
)
def test_a_bound_is_the_one_of_the_code(row: str, value: str) -> None:
    (line,) = [each for each in PAGE.read_text().splitlines() if each.startswith(f"| {row}")]
    assert value in line


def test_the_counts_of_topics_are_those_of_the_code() -> None:
    default = BrokerConfig()
    assert f"the {default.topics_max:,} of `maxTopics`" in page()
    assert f"ends at {default.topics_of_user_max:,} (`maxTopicsOfUser`)" in page()


def test_the_shares_of_a_turn_are_those_of_the_code() -> None:
    long, short = server_connection._LONG_TURN, server_connection._SHORT_TURN
    assert f"gets {long.turn * 1000:g} ms of each turn of the loop, and a quarter" in page()
    assert short.turn == long.turn / 4


def test_a_step_of_a_long_request_is_as_long_as_the_page_says() -> None:
    assert "are worked on in steps of a tenth of a millisecond" in page()
    assert topics._TOPICS_US == 100


def test_the_memory_of_a_connection_is_the_one_that_was_measured() -> None:
    """Decision 072 has the measurement. The three pages tell it rounded."""
    measured = re.search(r"\| memory of each \| [\d.]+ KiB \| ([\d.]+) KiB", DECISION.read_text())
    assert measured is not None
    rounded = round(float(measured[1]))
    assert f"up to {rounded} KiB each with TLS" in page()
    assert f"takes {rounded} KiB of memory" in (PAGE.parents[1] / "how-to" / "tls.md").read_text()
    sizing = (PAGE.parents[1] / "how-to" / "sizing.md").read_text()
    assert f"{rounded} KiB a connection" in sizing


def test_the_floods_are_those_of_the_newest_table() -> None:
    """How many there are, how many stay within the bar, and how long the others hold up."""
    text = (PAGE.parents[1] / "evidence" / "performance_broker.md").read_text()
    table = text.partition("<!-- table attacks -->")[2].partition("<!-- end attacks -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    ratios = {row[0]: float(row[-1]) for row in rows if row and re.fullmatch(r"[\d.]+", row[-1])}
    within = [name for name, ratio in ratios.items() if ratio <= 2.0]
    assert ratios.keys() == connection_attacks.ATTACKS.keys()
    assert f"Of {len(ratios)} floods, {len(within)} leave its p99 within twice" in page()
    creating = [
        round(float(row[-2].split(",")[1]))
        for row in rows
        if row and row[0] in ("new topics", "creations")
    ]
    assert f"makes it {min(creating)} to {max(creating)} ms" in page()


def test_the_ports_are_those_of_the_code() -> None:
    slaves = port_for_slaves({"brokerRole": "ASYNC_MASTER"}, broker._PORT)["haListenPort"]
    assert f"| `reliable-mq broker` | {broker._PORT} (`--port`) |" in page()
    assert f"| its name server | {broker._NAME_SERVER_PORT} (`--namesrv-port`) |" in page()
    assert f"| a broker with a `brokerRole` | {slaves}, and" in page()


def test_servers_listen_on_this_machine_by_default() -> None:
    assert broker._HOST == metrics.HERE == "127.0.0.1"


def test_the_core_needs_as_many_packages_as_the_page_says() -> None:
    project = (TESTS.parent / "pyproject.toml").read_text()
    listed = project.partition("\ndependencies = [")[2].partition("\n]")[0]
    assert "The core needs ten packages" in page()
    assert len(re.findall(r'^ *"', listed, re.MULTILINE)) == 10
