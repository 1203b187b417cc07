"""Which modules each process of pytest-xdist gets, and in what order, so that none is left alone.

A module is one piece of work, as with `--dist loadscope`. The longest go first: what is begun last
must be short, or all wait for it. Those that use the one Spark session of a process go together,
as each session costs its process ten seconds of two cores.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SPARK = "all that share a session of Spark"
_SHARES_SESSION = re.compile(
    r"\bspark: SparkSession\b|usefixtures\(\"spark\"\)|^pytestmark = pytest\.mark\.spark$",
    re.MULTILINE,
)
SECONDS = {
    SPARK: 200,
    **dict.fromkeys(
        (
            "tests/contrib/test_web_servers.py",
            "tests/fuzz/test_served.py",
        ),
        100,
    ),
    **dict.fromkeys(
        (
            "tests/acceptance/test_demo.py",
            "tests/replication/test_standing_in.py",
        ),
        60,
    ),
    **dict.fromkeys(
        (
            "tests/app/test_handlers_transaction.py",
            "tests/app/test_what_handlers_say.py",
            "tests/broker_core/test_against_apache.py",
            "tests/crash_matrix/test_crash_matrix.py",
            "tests/documentation/test_site.py",
            "tests/reconcile/test_command.py",
            "tests/testing/test_message_world.py",
        ),
        40,
    ),
    **dict.fromkeys(
        (
            "tests/app/test_crash_points.py",
            "tests/app/test_deliveries.py",
            "tests/app/test_leases_apart.py",
            "tests/app/test_without_extras.py",
            "tests/broker_core/test_access_against_apache.py",
            "tests/chaos/test_chaos.py",
            "tests/cli/test_database_away.py",
            "tests/crash/test_broker_kill.py",
            "tests/doctor/test_faults_in_databases.py",
            "tests/gateway/test_bad_consumers.py",
            "tests/interop/test_bundled_secured_shop.py",
            "tests/interop/test_java_client.py",
            "tests/reconcile/test_small_machines.py",
            "tests/reconcile/test_spark_follow.py",
            "tests/reconcile/test_spark_from_console.py",
            "tests/resend/test_closed_topics.py",
            "tests/simulation/test_simulation.py",
            "tests/testing/test_times.py",
        ),
        28,
    ),
    **dict.fromkeys(
        (
            "tests/app/test_business_keys.py",
            "tests/app/test_commands.py",
            "tests/app/test_confirmation_crash_points.py",
            "tests/app/test_confirmation_elsewhere.py",
            "tests/app/test_ended_batches.py",
            "tests/app/test_failures.py",
            "tests/app/test_idempotent_calls.py",
            "tests/app/test_last_attempts.py",
            "tests/app/test_retry_reasons.py",
            "tests/app/test_schema.py",
            "tests/cli/test_broker.py",
            "tests/cli/test_secrets.py",
            "tests/cli/test_start.py",
            "tests/conformance/test_apache_briefly.py",
            "tests/console/test_doing.py",
            "tests/console/test_ledger_lists.py",
            "tests/console/test_page_plans.py",
            "tests/contrib/test_django_consumers.py",
            "tests/contrib/test_django_production.py",
            "tests/contrib/test_django_test_runner.py",
            "tests/crash/test_pair_kill.py",
            "tests/deployment/test_deployment_files.py",
            "tests/gateway/test_consumers.py",
            "tests/gateway/test_endpoint_users.py",
            "tests/idempotency/test_redis_servers.py",
            "tests/outbox/test_check_backs.py",
            "tests/reconcile/test_real_store.py",
            "tests/reconcile/test_repair_in_hand.py",
            "tests/reconcile/test_window_plans.py",
            "tests/resend/test_alerts.py",
            "tests/resend/test_retention.py",
            "tests/telemetry/test_served_metrics.py",
            "tests/test_examples.py",
            "tests/test_makefile.py",
            "tests/test_tidy.py",
            "tests/tutorial/test_shop_project.py",
            "tests/typing/test_types.py",
        ),
        18,
    ),
    **dict.fromkeys(
        (
            "tests/app/test_busy_database.py",
            "tests/app/test_databases.py",
            "tests/app/test_forgotten_elsewhere.py",
            "tests/app/test_forks.py",
            "tests/app/test_half_transactions.py",
            "tests/app/test_lost_commits.py",
            "tests/app/test_people.py",
            "tests/app/test_poison.py",
            "tests/broker_core/filter/test_against_apache_filter.py",
            "tests/broker_core/test_pop_crashes.py",
            "tests/cli/test_conventions.py",
            "tests/cli/test_grpc_endpoint.py",
            "tests/cli/test_health.py",
            "tests/cli/test_interrupts.py",
            "tests/cli/test_log_options.py",
            "tests/cli/test_run.py",
            "tests/client/test_single_sends.py",
            "tests/console/test_cluster_deeds.py",
            "tests/console/test_dead_letter_deeds.py",
            "tests/console/test_dead_letter_races.py",
            "tests/console/test_lists.py",
            "tests/console/test_oidc.py",
            "tests/console/test_oidc_settings.py",
            "tests/console/test_planted_text.py",
            "tests/console/test_saved_and_traces.py",
            "tests/console/test_waiting_lists.py",
            "tests/contrib/test_django_admin.py",
            "tests/contrib/test_django_command.py",
            "tests/demo/test_checks.py",
            "tests/documentation/test_examined.py",
            "tests/documentation/test_old_messages.py",
            "tests/documentation/test_programs_of_pages.py",
            "tests/failover/test_controlled_brokers.py",
            "tests/house/test_mutants.py",
            "tests/model/test_gate.py",
            "tests/outbox/test_half_crash_points.py",
            "tests/periodic/test_exactly_once.py",
            "tests/periodic/test_killed_schedulers.py",
            "tests/periodic/test_ticks.py",
            "tests/reconcile/test_repair_in_traffic.py",
            "tests/reconcile/test_sql_repair.py",
            "tests/replication/test_bad_input.py",
            "tests/replication/test_coming_back.py",
            "tests/resend/test_fair_shares.py",
            "tests/resend/test_partitions.py",
            "tests/resend/test_plans.py",
            "tests/telemetry/test_broker_away.py",
            "tests/test_decodable.py",
            "tests/testing/test_world_by_message.py",
        ),
        9,
    ),
}
"""What takes longer than its number of tests tells, about, in a whole run on two cores.
`--junitxml` of such a run has the times. Who is missing here may be begun last, and all wait."""
_SECONDS_A_TEST = 0.15


T = TypeVar("T")


def from_own_place(all_parts: Sequence[T], worker: dict[str, Any]) -> list[T]:
    """Return the parts of the tests in the order in which a process collects them.

    Each process begins at a place of its own. In a new clone, the first one that comes to a module
    compiles it for all: if all came at the same time, each would.
    """
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    at = len(all_parts) * number // count
    return [*all_parts[at:], *all_parts[:at]]


def in_one_order(items: list[pytest.Item]) -> None:
    """Sort what was collected: pytest-xdist wants it alike in all processes."""
    items.sort(key=lambda item: item.path)


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process that has nothing left the longest of what nobody has."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::", 1)[0]
        return SPARK if _shares_session(self.config.rootpath / module) else module

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._seconds), last=False)
        super()._assign_work_unit(node)

    def _seconds(self, scope: str) -> float:
        return SECONDS.get(scope, _SECONDS_A_TEST * len(self.workqueue[scope]))


@cache
def _shares_session(module: Path) -> bool:
    return bool(_SHARES_SESSION.search(module.read_text()))
