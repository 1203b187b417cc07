"""Settings that are misspelt are told of, wherever they stand."""

import logging

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError


def test_a_setting_that_does_not_exist_names_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting databse; did you mean database\?"):
        ReliableMQ("shop", databse="sqlite:///x.db")
    with pytest.raises(ConfigurationError, match=r"no setting zzz; there are broker, database,"):
        ReliableMQ("shop", zzz=1)


def test_a_misspelt_variable_is_told_of_and_other_peoples_variables_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CLAIM_LAESE", "3")
    monkeypatch.setenv("RELIABLE_MQ_SERVICE_HOST", "10.0.0.1")  # Kubernetes

    assert ReliableMQ("shop").settings.claim_lease == 10.0

    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    said = "RELIABLE_MQ_CLAIM_LAESE sets nothing; did you mean RELIABLE_MQ_CLAIM_LEASE?"
    assert line.getMessage() == said


@pytest.mark.parametrize("broker", ["nonsense", "", "there:", "127.0.0.1:70000"])
def test_an_address_that_cannot_be_a_broker_is_refused_before_it_is_needed(broker: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        ReliableMQ("shop", broker=broker)


def test_the_applications_notifier_is_the_schedulers(tmp_path: object) -> None:
    class Pager:
        def escalated(self, stubs: object) -> None: ...

        def behind(self, backlogs: object) -> None: ...

    pager, other = Pager(), Pager()
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/x.db", notifier=pager)

    assert mq.scheduler()._notifier is pager
    assert mq.scheduler(other)._notifier is other
    mq.close()
