"""Both brokers are asked everything that ours answers; that they answer alike needs Java."""

import pytest
from tests.broker_core.probes.access import SIGNED
from tests.broker_core.probes.asking import Probe
from tests.broker_core.probes.name_server import NAME_SERVER
from tests.broker_core.probes.places import PLACES
from tests.broker_core.probes.script import SCRIPT

from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.wire.codes import RequestCode


@pytest.mark.parametrize("code", HANDLERS, ids=lambda code: RequestCode(code).name)
def test_both_brokers_are_asked_every_request_that_ours_answers(code: int) -> None:
    signed = (each.probe for each in SIGNED)
    is_asked = any(probe.code == code for probe in (*SCRIPT, *PLACES, *signed))
    assert is_asked, "no probe: add one to the module of its subject in tests/broker_core/probes/"


@pytest.mark.parametrize("code", NameServerCore().codes, ids=lambda code: RequestCode(code).name)
def test_both_name_servers_are_asked_every_request_that_ours_answers(code: int) -> None:
    is_asked = any(probe.code == code for probe in NAME_SERVER)
    assert is_asked, "no probe: add one to tests/broker_core/probes/name_server.py"


@pytest.mark.parametrize("script", [SCRIPT, PLACES, NAME_SERVER])
def test_every_probe_has_a_name_of_its_own(script: list[Probe]) -> None:
    assert len({probe.name for probe in script}) == len(script)
