"""What the doctor advises when a broker with access control refuses it."""

import pytest
from tests.doctor.test_doctor import with_broker

from reliable_mq.doctor.finding import CheckFindings, Level, worst
from reliable_mq.doctor.redis_examination import CHECKS
from reliable_mq.wire.remote_faults import remote_error


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("code 16: User:a is disabled.", "reliable-mq access change USER --enable"),
        ("code 16: User:a is not found.", "correct access_key (RELIABLE_MQ_ACCESS_KEY)"),
        ("code 16: check signature failed.", "correct secret_key (RELIABLE_MQ_SECRET_KEY)"),
        ("code 16: username cannot be null.", "set access_key and secret_key"),
        ("gone", "look at its log"),
    ],
)
def test_the_remedy_is_that_of_the_brokers_refusal(failure: str, remedy: str) -> None:
    told = CheckFindings("broker")
    CHECKS["broker"](with_broker(failure=failure), told)

    assert remedy in told.findings[0].remedy


def test_an_applications_account_that_may_not_ask_for_settings_is_no_fault() -> None:
    """It has the least rights, and a deployment must be able to run `doctor --strict` with it."""
    refusal = (
        "User:shop has no permission to access Cluster:DefaultCluster from 10.0.0.1, "
        "no matched policies."
    )
    told = CheckFindings("broker")
    CHECKS["broker"](with_broker(failure=str(remote_error(16, refusal))), told)

    assert [each.level for each in told.findings] == [Level.SKIPPED]
    assert worst(told.findings) == Level.OK
    text = told.findings[0].text
    assert "user shop has no right Get on Cluster:DefaultCluster. No application needs it" in text
    assert "access grant" not in text, "the application is not advised to take the right"
