"""A slave stands in for its master: what waits for its time comes, from another master."""

import asyncio
import logging
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.broker_core.raw_client import RawClient
from tests.replication.acting_world import ActingWorld, acting_world, hasten
from tests.replication.test_pair import told
from tests.waiting import eventually, run_scene

from reliable_mq.replication import standing_in as rule
from reliable_mq.runtime import standing_in
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.properties import DELAY, TIMER_DELIVER_MS

ALL = ("other", "master", "slave")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)


BEATS = {"brokerHeartbeatInterval": "100"}


def names(kind: str, count: int) -> list[bytes]:
    return [b"%s %d" % (kind.encode(), number) for number in range(count)]


def test_delayed_messages_come_from_another_master_and_not_again_from_their_own(
    tmp_path: Path,
) -> None:
    delayed = names("delayed", 50)

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.send("master", delayed, **{DELAY: 2})
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            await eventually(lambda: sorted(world.bodies("other")) == sorted(delayed))
            await world.start("master")
            await eventually(lambda: not world.is_acting())
            await world.send("master", [b"now"])
            await eventually(lambda: world.bodies("master") == [b"now"])
            await world.send("master", [b"last"], **{DELAY: 2})
            await eventually(lambda: world.bodies("master") == [b"now", b"last"])
            await eventually(lambda: world.end("slave") == world.end("master"))
            assert sorted(world.bodies("other")) == sorted(delayed), "each once"

    run_scene(scene())


def due_in(seconds: float) -> dict[str, int]:
    """Return the property of a message that is due so many seconds from now."""
    return {TIMER_DELIVER_MS: now_ms() + int(seconds * 1000)}


@pytest.mark.long
def test_timed_messages_come_in_time_from_where_they_can_and_each_once(tmp_path: Path) -> None:
    """Some were delivered before the master went, some come meanwhile, some after it is back."""
    early, now, later = names("early", 20), names("now", 20), names("later", 20)

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.send("master", early, **due_in(0.5))
            await eventually(lambda: sorted(world.bodies("master")) == sorted(early))
            await world.send("master", now, **due_in(9))
            await world.send("master", later, **due_in(25))
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            await eventually(lambda: sorted(world.bodies("other")) == sorted(now))
            await eventually(lambda: done_ms(world) > now_ms() - 3_000)
            await world.start("master")
            await eventually(lambda: len(world.bodies("master")) >= len(early + later))
            assert sorted(world.bodies("master")) == sorted(early + later)
            assert sorted(world.bodies("other")) == sorted(now)

    run_scene(scene())


def done_ms(world: ActingWorld) -> int:
    return world.brokers["slave"]._core.state.timers.followed.progress().done_ms


def test_a_recalled_message_is_not_delivered_elsewhere(tmp_path: Path) -> None:
    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            due = due_in(9)
            await world.send("master", [b"recalled", b"kept"], **due)
            (first,) = [
                each.property_map()["UNIQ_KEY"]
                for each in world.records("master", "rmq_sys_wheel_timer")
                if each.body == b"recalled"
            ]
            await world.send("master", [b""], **due, TIMER_DEL_UNIQKEY=first)
            await world.copied()
            await world.stop("master")
            await eventually(lambda: world.bodies("other") == [b"kept"])
            await eventually(lambda: done_ms(world) > due[TIMER_DELIVER_MS])
            assert world.bodies("other") == [b"kept"]

    run_scene(scene())


def test_what_the_slave_did_not_have_is_delivered_by_the_master(tmp_path: Path) -> None:
    """Also what was due while the slave stood in: its progress covers only what it had."""

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.send("master", [b"both"], **due_in(9))
            await world.send("master", [b"both, delayed"], **{DELAY: 2})
            await world.copied()
            await world.stop("slave")
            await world.send("master", [b"alone"], **due_in(9))
            await world.send("master", [b"alone, delayed"], **{DELAY: 2})
            await world.stop("master")
            await world.start("slave")
            await eventually(lambda: len(world.bodies("other")) == 2)
            await eventually(lambda: done_ms(world) > now_ms() - 2_000)
            await world.start("master")
            await eventually(lambda: len(world.bodies("master")) == 2)
            assert sorted(world.bodies("other")) == [b"both", b"both, delayed"]
            assert sorted(world.bodies("master")) == [b"alone", b"alone, delayed"]

    run_scene(scene())


def test_without_another_master_messages_wait_for_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.stop("other")
            await world.send("master", [b"1", b"2"], **{DELAY: 2})
            await world.copied()
            await world.stop("master")
            await eventually(lambda: told(caplog, "not_delivered_elsewhere"))
            await world.start("master")
            await eventually(lambda: sorted(world.bodies("master")) == [b"1", b"2"])

    run_scene(scene())
    assert (
        "a message of topic t is due, and waits for its master: no other master has topic t"
        in (told(caplog, "not_delivered_elsewhere")[0])
    )


@pytest.mark.long
def test_a_master_that_flaps_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    sent: list[bytes] = []

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            for round_ in range(5):
                bodies = names(f"round {round_}", 20)
                sent.extend(bodies)
                await world.send("master", bodies[::2], **{DELAY: 1 + round_ % 2})
                await world.send("master", bodies[1::2], **due_in(1 + round_ % 2))
                await world.copied()
                await world.stop_known_master()
                if round_ % 2:
                    await eventually(world.is_acting)
                await world.start("master")

            def all_bodies() -> list[bytes]:
                return sorted(world.bodies("master") + world.bodies("other"))

            await eventually(lambda: len(all_bodies()) >= len(sent))
            await world.send("master", [b"last"], **{DELAY: 2})
            await eventually(lambda: b"last" in world.bodies("master"))
            assert all_bodies() == sorted([*sent, b"last"])

    run_scene(scene())


@pytest.mark.long
def test_the_second_slave_goes_on_where_the_first_has_ended(tmp_path: Path) -> None:
    early, late = names("early", 20), names("late", 20)

    async def scene() -> None:
        async with acting_world(tmp_path, (*ALL, "slave2"), **BEATS) as world:
            await world.send("master", early, **{DELAY: 2})
            await world.send("master", late, **due_in(25))
            await world.copied("slave")
            await world.copied("slave2")
            await world.stop("master")
            await eventually(lambda: sorted(world.bodies("other")) == sorted(early))
            assert world.is_acting("slave")
            assert not world.is_acting("slave2")
            second = world.brokers["slave2"]._core.state
            await eventually(lambda: second.schedule.saved().get(2) == len(early))
            await world.stop("slave")
            await eventually(lambda: world.is_acting("slave2"))
            await world.start("slave")
            await eventually(lambda: not world.is_acting("slave2"))
            await eventually(lambda: world.is_acting("slave"))
            await eventually(lambda: sorted(world.bodies("other")) == sorted(early + late))
            await world.start("master")
            await world.send("master", [b"last"], **{DELAY: 1})
            await eventually(lambda: world.bodies("master") == [b"last"])
            assert sorted(world.bodies("other")) == sorted(early + late)

    run_scene(scene())


def test_a_slave_says_when_it_cannot_learn_what_another_has_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object) -> NoReturn:
        raise ValueError("request 43 is refused")

    async def scene() -> None:
        async with acting_world(tmp_path, (*ALL, "slave2"), **BEATS) as world:
            await world.copied("slave")
            await world.copied("slave2")
            monkeypatch.setattr(standing_in, "asked", refused)
            caplog.set_level(logging.INFO)
            await world.stop("master")
            said = f"slave {world.brokers['slave'].address} does not say what it has delivered: "
            await eventually(lambda: f"{said}request 43 is refused" in caplog.messages)

    run_scene(scene())


def test_a_restart_of_the_name_server_makes_nobody_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave registers before the master does, and still follows it."""
    seen: list[bool] = []
    look = rule.StandInDecision.look

    def looked(decision: rule.StandInDecision, now: float, **found: Any) -> bool:
        seen.append(look(decision, now, **found))
        return seen[-1]

    monkeypatch.setattr(rule.StandInDecision, "look", looked)

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.copied()
            registrar = world.brokers["master"]._registrar
            registrar.addresses = ()  # the master is late
            await world.restart_name_server()
            routes = world.name_server._core.routes
            await eventually(lambda: routes.members("DefaultCluster", "pair").keys() == {1})
            seen.clear()
            await eventually(lambda: len(seen) > 10)
            assert not any(seen)

    run_scene(scene())


@pytest.mark.long
def test_a_slave_that_stands_in_goes_on_after_the_name_server_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name server it delivers nothing: the master may be back."""
    monkeypatch.setattr(rule, "UNTOLD_SECONDS", 0.3)

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.send("master", [b"1"], **{DELAY: 2})
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            await world.name_server.close()
            await eventually(lambda: not world.is_acting())
            await world.restart_name_server()
            await eventually(world.is_acting)
            await eventually(lambda: world.bodies("other") == [b"1"])

    run_scene(scene())


def test_a_slave_that_starts_again_while_it_stands_in_repeats_nothing(tmp_path: Path) -> None:
    bodies = names("delayed", 20)

    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.send("master", bodies[::2], **{DELAY: 2})
            await world.send("master", bodies[1::2], **due_in(9))
            await world.copied()
            await world.stop("master")
            await eventually(lambda: sorted(world.bodies("other")) == sorted(bodies))
            await eventually(lambda: done_ms(world) > now_ms() - 2_000)
            await world.stop("slave")
            await world.start("slave")
            await eventually(world.is_acting)
            state = world.brokers["slave"]._core.state
            deliveries = state.stand_in.deliveries
            assert deliveries is not None
            await eventually(lambda: deliveries._timed.is_read)
            await world.start("master")
            assert sorted(world.bodies("other")) == sorted(bodies)
            assert not deliveries.accepted

    run_scene(scene())


def test_an_acting_slave_takes_no_messages(tmp_path: Path) -> None:
    async def scene() -> None:
        async with acting_world(tmp_path, ALL, **BEATS) as world:
            await world.copied()
            await world.stop("master")
            await eventually(world.is_acting)
            address = world.brokers["slave"].address

            def asked() -> list[tuple[int, str | None]]:
                header = {"a": "p", "b": "t", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 0, "h": 0}
                back = {"offset": 0, "group": "g", "delayLevel": 0}
                with RawClient(address) as client:
                    answers = [
                        client.ask(RequestCode.SEND_MESSAGE_V2, header, b"x"),
                        client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back),
                    ]
                return [(each.code, each.remark) for each in answers]

            sent, back = await asyncio.to_thread(asked)
            assert sent[0] == ResponseCode.SYSTEM_BUSY
            assert back[0] == ResponseCode.SYSTEM_ERROR
            assert "no master available along with" in str(back[1])

    run_scene(scene())


def test_a_notice_of_a_name_server_lets_a_slave_look_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's name server gives it (`notifyMinBrokerIdChanged`); what it says is not believed."""

    async def scene() -> None:
        async with acting_world(tmp_path, ("other", "master"), **BEATS) as world:
            slave = await world.start("slave", brokerHeartbeatInterval="3600000")
            await world.copied()

            def notice() -> None:
                with RawClient(slave.address) as client:
                    fields = {"minBrokerId": 1, "minBrokerAddr": slave.address}
                    answer = client.ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, fields)
                    assert answer.code == ResponseCode.SUCCESS

            looks = list[float]()
            look = rule.StandInDecision.look

            def looked(decision: rule.StandInDecision, now: float, **found: Any) -> bool:
                looks.append(now)
                return look(decision, now, **found)

            monkeypatch.setattr(rule.StandInDecision, "look", looked)
            await asyncio.to_thread(notice)
            await eventually(lambda: len(looks) == 1)
            assert not world.is_acting(), "the master is there"
            await world.stop("master")

            async def is_acting() -> bool:
                await asyncio.to_thread(notice)
                return world.is_acting()

            await eventually(is_acting)

    run_scene(scene())
