"""Whole tables for tools: in pages as Apache's newer tools ask for them, or whole if they fit."""

from collections.abc import Mapping

import pytest
from tests.broker_core.broker_world import BrokerWorld

from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests import tables
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode

TOPICS = (RequestCode.GET_ALL_TOPIC_CONFIG, "topic", "topicConfigTable")
GROUPS = (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "group", "subscriptionGroupTable")


@pytest.fixture
def world() -> BrokerWorld:
    broker = BrokerWorld()
    for number in range(30):
        broker.state.topics.set_topic(TopicConfig(topic_name=f"t{number}"), broker.now_ms)
        broker.state.groups.set_group(GroupConfig(group_name=f"g{number}"), broker.now_ms)
    return broker


def ext(what: str, **values: object) -> Mapping[str, object]:
    """Return the fields of a request for a page: `seq`, `most`, `version`."""
    names = {"seq": f"{what}Seq", "most": f"max{what.title()}Num", "version": "dataVersion"}
    return {names[name]: value for name, value in values.items()}


@pytest.mark.parametrize(("code", "what", "table"), [TOPICS, GROUPS])
def test_pages_are_the_whole_table_in_order(
    world: BrokerWorld, code: int, what: str, table: str
) -> None:
    whole = world.ask(code)
    body = fastjson.loads(whole.body)
    total = int(whole.ext_fields[f"total{what.title()}Num"])
    assert total == len(body[table]) > 30
    version = ""
    pages: dict[str, object] = {}
    while len(pages) < total:
        asked = ext(what, seq=len(pages), most=7, version=version)
        answer = world.ask(code, asked)
        page = fastjson.loads(answer.body)
        assert answer.ext_fields[f"total{what.title()}Num"] == str(total)
        assert 0 < len(page[table]) <= 7
        version = fastjson.dumps(page["dataVersion"]).decode()
        pages |= page[table]
    assert list(pages) == sorted(pages)
    assert pages == body[table]


@pytest.mark.parametrize(("code", "what", "table"), [TOPICS, GROUPS])
def test_a_page_of_a_table_that_changed_is_the_first_one(
    world: BrokerWorld, code: int, what: str, table: str
) -> None:
    def page(version: str) -> list[str]:
        answer = world.ask(code, ext(what, seq=5, most=5, version=version))
        return list(fastjson.loads(answer.body)[table])

    known = fastjson.dumps(fastjson.loads(world.ask(code).body)["dataVersion"]).decode()
    names = sorted(fastjson.loads(world.ask(code).body)[table])
    assert page(known) == names[5:10]
    assert page("") == page(" ") == names[:5]
    world.state.topics.set_topic(TopicConfig(topic_name="t30"), world.now_ms)
    world.state.groups.set_group(GroupConfig(group_name="g30"), world.now_ms)
    assert page(known) == names[:5]


@pytest.mark.parametrize(("code", "what", "table"), [TOPICS, GROUPS])
def test_a_page_has_at_most_as_many_entries_as_apache_gives(
    world: BrokerWorld, code: int, what: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAGE_MAX", 3)
    for asked in ({"most": 1_000}, {"version": ""}, {"seq": -4}):
        answer = world.ask(code, ext(what, **asked))
        assert len(fastjson.loads(answer.body)[table]) == 3
    assert fastjson.loads(world.ask(code, ext(what, most=-1)).body)[table] == {}


@pytest.mark.parametrize("code", [TOPICS[0], GROUPS[0], RequestCode.GET_ALL_CONSUMER_OFFSET])
def test_a_table_that_fits_no_frame_is_refused_with_what_to_do(
    world: BrokerWorld, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.state.offsets.commit("g", "t", 0, 1)
    monkeypatch.setattr(tables, "_BODY_MAX", 10)
    answer = world.ask(code)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "do not fit into a frame; ask for them" in (answer.remark or "")


def test_settings_that_json_cannot_say_change_no_table(world: BrokerWorld) -> None:
    settings = b'{groupName:"g",retryMaxTimes:%d}' % 10**30
    answer = world.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings)
    assert answer.code != ResponseCode.SUCCESS
    assert world.state.groups.get("g") is None
    world.state.groups.invariants()
