"""Which modules each process of pytest-xdist gets, and in what order, so that none is left alone.

A module is one piece of work, as with `--dist loadscope`. The longest go first: what is begun last
must be short, or all wait for it. Those that use the one Spark session of a process go together,
as each session costs its process ten seconds of two cores.
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SPARK = "all that share a session of Spark"
_SHARES_SESSION = re.compile(
    r"\bspark: SparkSession\b|usefixtures\(\"spark\"\)|^pytestmark = pytest\.mark\.spark$",
    re.MULTILINE,
)
SECONDS = {
    SPARK: 400,
    "tests/contrib/test_web_servers.py": 120,
    "tests/acceptance/test_demo.py": 80,
    "tests/typing/test_types.py": 60,
    "tests/reconcile/test_small_machines.py": 50,
    "tests/broker_core/test_against_apache.py": 40,
    "tests/simulation/test_simulation.py": 40,
    "tests/app/test_confirmation_elsewhere.py": 40,
    "tests/reconcile/test_real_store.py": 40,
    "tests/crash_matrix/test_crash_matrix.py": 40,
    "tests/reconcile/test_spark_follow.py": 30,
    "tests/interop/test_java_client.py": 30,
    "tests/conformance/test_lost_master.py": 25,
    "tests/reconcile/test_command.py": 25,
    "tests/crash/test_broker_kill.py": 25,
    "tests/app/test_commands.py": 20,
    "tests/chaos/test_chaos.py": 20,
    "tests/idempotency/test_redis_servers.py": 15,
    "tests/conformance/test_apache_briefly.py": 15,
    "tests/reconcile/test_repair_in_traffic.py": 15,
}
"""What takes longer than its number of tests tells, about, on two cores."""
_SECONDS_A_TEST = 0.15


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
