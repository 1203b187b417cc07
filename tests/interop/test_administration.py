"""`reliable-mq topic|group|message` tells what mqadmin tells, at Apache's broker and at ours.

The two are asked one after the other; what is put on the broker is put there by Apache's clients,
and what one of the two changes, the other one must see.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker
from tests.interop.admin_shell import AdminShell
from tests.waiting import Budget, until
from tests.with_java import INTEROP, Broker, started

from reliable_mq.cli.main import run
from reliable_mq.wire import fastjson
from reliable_mq.wire.message_id import decode_offset_message_id

SETTLE_SECONDS = 60.0
SAME_NAME = {"brokerName": "same"}
MESSAGES = 7
TRACKS = {"CONSUMED": "done", "NOT_CONSUME_YET": "waits", "CONSUMED_BUT_FILTERED": "filtered"}

pytestmark = INTEROP


class Both:
    """One cluster, asked by mqadmin and by our command."""

    def __init__(self, name_server: str, shell: AdminShell) -> None:
        self.name_server = name_server
        self._shell = shell
        self.ids: list[str] = []
        self.places: list[str] = []

    def mqadmin(self, command: str, *words: str) -> str:
        """Return what a command of mqadmin, or of the shell that it runs in, prints."""
        return self._shell.run(*command.replace("NS", self.name_server).split(), *words)

    def table(self, command: str) -> list[list[str]]:
        """Return the rows that a command of mqadmin prints below its line of names."""
        lines = self.mqadmin(command).splitlines()
        begin = next(at for at, line in enumerate(lines) if line.startswith("#"))
        rows = [line.split() for line in lines[begin + 1 :]]
        return rows[: rows.index([])] if [] in rows else rows

    def ours(self, *words: str) -> Any:
        """Return what our command tells, as JSON."""
        return json.loads(self.said(*words, "--json"))

    def said(self, *words: str) -> str:
        """Return what our command prints; it must succeed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
            run([*words, "--broker", self.name_server])
        assert not ended.value.code, f"{words}: {out.getvalue()}"
        return out.getvalue()

    def agree(self, theirs: Callable[[], Any], ours: Callable[[], Any]) -> Any:
        """Return what both tell; they must come to the same: some numbers lag behind a while."""
        budget = Budget(SETTLE_SECONDS)
        while (told := theirs()) != (here := ours()):
            assert budget.is_left(), f"{budget.missed()}: mqadmin: {told}\nours:    {here}"
        return here


@pytest.fixture(scope="module", params=["apache", "ours"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shell: AdminShell
) -> Iterator[Both]:
    """Give a cluster with seven messages that a Java consumer has taken."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    servers: Broker
    if request.param == "apache":
        servers = ApacheRocketMQ(directory, "ASYNC_FLUSH", SAME_NAME)
    else:
        servers = ReliableMQBroker(directory, "ASYNC_FLUSH", settings=SAME_NAME)
    with started(servers), shell.closing_clients():
        found = Both(servers.name_server_address, shell)
        shell.wait_for_broker(found.name_server, "same")
        found.said("topic", "create", "orders", "--queues", "2")
        sent = found.mqadmin(f"@produce NS producers orders 2 {MESSAGES}")
        ids = re.findall(r"#(\w+) #(\w+)", sent)
        found.ids, found.places = [each[0] for each in ids], [each[1] for each in ids]
        found.mqadmin(f"@consume NS consumers orders {MESSAGES}")
        _wait_for_commits(found)
        yield found


def _wait_for_commits(found: Both) -> None:
    """Wait for the Java consumer: it commits every five seconds."""
    until(
        lambda: sum(row["committed"] for row in _rows(found)) >= MESSAGES,
        lambda: f"the queues are {_rows(found)}",
        seconds=SETTLE_SECONDS,
    )


def _rows(found: Both) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found.ours("group", "progress", "consumers")["queues"]
    return rows


def when(moment: str | None) -> str:
    """Return a time of ours as mqadmin writes it, in the zone of this machine; none as nothing."""
    if moment is None:
        return ""
    local = datetime.fromisoformat(moment).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S")


def test_topics_and_their_routes_are_told_alike(both: Both) -> None:
    both.agree(
        lambda: sorted(set(both.mqadmin("topicList -n NS").split()) - {""}),
        lambda: both.ours("topic", "list", "--all"),
    )
    route = fastjson.loads(both.mqadmin("topicRoute -n NS -t orders"))
    (place,) = both.ours("topic", "route", "orders")
    (queues,) = route["queueDatas"]
    (broker,) = route["brokerDatas"]
    assert (place["broker"], place["cluster"]) == (broker["brokerName"], broker["cluster"])
    assert list(place["addresses"].values()) == list(broker["brokerAddrs"].values())
    assert (place["read_queues"], place["write_queues"], place["permission"]) == (
        *(queues["readQueueNums"], queues["writeQueueNums"]),
        {6: "rw"}[queues["perm"]],
    )


def test_the_status_of_a_topic_is_told_alike(both: Both) -> None:
    def theirs() -> list[tuple[str, ...]]:
        rows = both.table("topicStatus -n NS -t orders")
        return [(*row[:4], " ".join(row[4:]).partition(",")[0]) for row in rows]

    def ours() -> list[tuple[str, ...]]:
        rows = both.ours("topic", "status", "orders")["queues"]
        return [
            (
                *(row["broker"], str(row["queue"]), str(row["first"]), str(row["end"])),
                when(row["last_stored"]),
            )
            for row in rows
        ]

    rows = both.agree(theirs, ours)
    assert sum(int(row[3]) for row in rows) == MESSAGES


def progress_of(both: Both, group: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return how mqadmin and how our command tell of a group's progress in the topic."""

    def theirs() -> list[tuple[str, ...]]:
        rows = both.table(f"consumerProgress -n NS -g {group} -t orders")
        return [(*row[:7], " ".join(row[7:]).replace("N/A", "")) for row in rows]

    def ours() -> list[tuple[str, ...]]:
        rows = both.ours("group", "progress", group, "--topic", "orders")["queues"]
        names = ("topic", "broker", "queue", "end", "committed", "lag", "in_flight")
        return [(*(str(row[name]) for name in names), when(row["last_consumed"])) for row in rows]

    return theirs, ours


def test_the_progress_of_a_group_is_told_alike(both: Both) -> None:
    rows = both.agree(*progress_of(both, "consumers"))

    assert [row[:3] for row in rows] == [("orders", "same", "0"), ("orders", "same", "1")]
    both.agree(
        lambda: len(both.table("consumerProgress -n NS -g consumers")),  # its retries, too
        lambda: len(both.ours("group", "progress", "consumers")["queues"]),
    )


def test_all_groups_are_told_alike(both: Both) -> None:
    def theirs() -> set[tuple[str, ...]]:
        rows = both.table("consumerProgress -n NS")
        online = [row for row in rows if row[0] == "consumers"]
        return {(row[0], row[1], row[2], row[3], row[4], row[-1]) for row in online}

    def ours() -> set[tuple[str, ...]]:
        rows = [row for row in both.ours("group", "progress") if row["group"] == "consumers"]
        return {
            (
                *(row["group"], str(row["members"])),
                *("V" + each.replace(".", "_") for each in row["version"]),
                *(row["kind"].upper(), row["model"].upper(), str(row["lag"])),
            )
            for row in rows
        }

    (told,) = both.agree(theirs, ours)
    assert told[:-1] == ("consumers", "1", "V5_4_0", "PUSH", "CLUSTERING")


def test_the_members_of_a_group_and_their_queues_are_told_alike(both: Both) -> None:
    found = both.ours("group", "connections", "consumers")
    (member,) = found["members"]
    printed = both.mqadmin("consumerConnection -n NS -g consumers")
    (row,) = both.table("consumerConnection -n NS -g consumers")
    version = "V" + member["version"].replace(".", "_")
    assert row == [member["client_id"], member["address"], member["language"], version]
    for topic, expression in found["subscriptions"].items():
        assert re.search(rf"^{topic}\s+{re.escape(expression)}$", printed, re.MULTILINE)
    assert "MessageModel: CLUSTERING" in printed
    assert found["model"] == "clustering"

    def theirs() -> dict[tuple[str, ...], str]:
        rows = both.table("consumerProgress -n NS -g consumers -s true")
        return {(row[0], row[1], row[2]): row[5] for row in rows}

    def ours() -> dict[tuple[str, ...], str]:
        rows = both.ours("group", "progress", "consumers", "--members")["queues"]
        return {
            (row["topic"], row["broker"], str(row["queue"])): row["member"].partition("@")[0]
            for row in rows
        }

    both.agree(theirs, ours)


def test_the_producers_of_a_group_are_told_alike(both: Both) -> None:
    printed = both.mqadmin("producerConnection -n NS -g producers -t orders")
    (client,) = both.ours("group", "producers", "producers")["producers"]

    assert printed.split()[1:] == [
        *(client["client_id"], client["address"], client["language"]),
        "V" + client["version"].replace(".", "_"),
    ]


def test_a_message_is_found_alike_by_each_of_its_names(both: Both) -> None:
    message_id, place = both.ids[3], both.places[3]

    def found_by(command: str) -> tuple[str, ...]:
        printed = both.mqadmin(command)
        fields = dict(re.findall(r"^([A-Z][\w ]+):\s+(.*)$", printed, re.MULTILINE))
        names = ("Topic", "Queue ID", "Queue Offset", "Reconsume Times", "CommitLog Offset")
        track = re.search(r"consumerGroup=consumers, trackType=(\w+)", printed)
        assert track is not None, printed
        stored = fields["Store Timestamp"].partition(",")[0]
        keys = fields["Keys"].strip("[]")
        return (*(fields[name] for name in names), keys, stored, TRACKS[track[1]])

    def ours(*words: str) -> tuple[str, ...]:
        (row,) = both.ours("message", *words)
        names = ("topic", "queue", "offset", "reconsumed")
        place = decode_offset_message_id(row["offset_message_id"]).commit_log_offset
        keys, stored = " ".join(row["keys"]), when(row["time"])
        told = (*(str(row[name]) for name in names), str(place), keys, stored)
        return (*told, row["groups"]["consumers"])

    for command, words in (
        (f"queryMsgById -n NS -t orders -i {place}", ("show", place)),
        (
            f"queryMsgByUniqueKey -n NS -t orders -i {message_id}",
            ("show", message_id, "--topic", "orders"),
        ),
    ):
        both.agree(partial(found_by, command), partial(ours, *words))
    by_key = both.table("queryMsgByKey -n NS -t orders -k key-3")
    (row,) = both.ours("message", "find", "orders", "--key", "key-3")
    assert [each[:3] for each in by_key] == [
        [row["message_id"], str(row["queue"]), str(row["offset"])]
    ]


def test_all_messages_of_a_topic_are_listed_alike(both: Both) -> None:
    printed = both.mqadmin("printMsg -n NS -t orders -d true")
    theirs = sorted(re.findall(r"^MSGID: (\w+) .* BODY: (.*)$", printed, re.MULTILINE))

    rows = both.ours("message", "list", "orders")

    assert sorted((row["message_id"], row["content"]) for row in rows) == theirs
    assert len(theirs) == MESSAGES


def test_offsets_that_we_set_are_those_that_mqadmin_sets(both: Both) -> None:
    both.said("group", "create", "heirs")
    both.said("group", "clone", "consumers", "heirs", "--topic", "orders", "--yes")
    cloned = both.agree(*progress_of(both, "heirs"))
    assert sum(int(row[4]) for row in cloned) == MESSAGES

    planned = both.ours("group", "reset", "heirs", "orders", "--to-start", "--dry-run")
    both.mqadmin("resetOffsetByTime -n NS -g heirs -t orders -s 0")
    rows = both.agree(*progress_of(both, "heirs"))
    assert [row[4] for row in rows] == [str(row["after"]) for row in planned]

    both.said("group", "reset", "heirs", "orders", "--to-end", "--yes")
    ours = both.agree(*progress_of(both, "heirs"))
    both.mqadmin("resetOffsetByTime -n NS -g heirs -t orders -s 0")
    both.mqadmin("skipAccumulatedMessage -n NS -g heirs -t orders")
    assert both.agree(*progress_of(both, "heirs")) == ours

    one = ("--to-offset", "1", "--broker-name", "same", "--queue", "1")
    both.said("group", "reset", "heirs", "orders", *one, "--yes")
    rows = both.agree(*progress_of(both, "heirs"))
    assert [row[4] for row in rows if row[2] == "1"] == ["1"]


def config_of(both: Both, group: str) -> dict[str, str]:
    """Return a group's settings as mqadmin prints them."""
    printed = both.mqadmin(f"getConsumerConfig -n NS -g {group}")
    return dict(re.findall(r"^(\w+)\s*=\s+(.*)$", printed, re.MULTILINE))


def test_what_we_make_and_change_mqadmin_sees_and_the_other_way_round(both: Both) -> None:
    both.said("topic", "create", "made", "--queues", "3", "--permission", "r")
    (queues,) = fastjson.loads(both.mqadmin("topicRoute -n NS -t made"))["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 3, 4)
    both.mqadmin("updateTopicPerm -n NS -c DefaultCluster -t made -p 6")
    both.agree(lambda: "rw", lambda: both.ours("topic", "route", "made")[0]["permission"])
    both.said("topic", "delete", "made", "--yes")
    assert "made" not in both.mqadmin("topicList -n NS").split()

    both.said("group", "create", "made", "--retries", "3", "--no-broadcast")
    theirs = config_of(both, "made")
    assert (theirs["retryMaxTimes"], theirs["consumeBroadcastEnable"]) == ("3", "false")
    both.mqadmin("updateSubGroup -n NS -c DefaultCluster -g made -s true -r 5")
    (row,) = both.ours("group", "show", "made")
    assert row["retries_max"] == 5
    both.said("group", "update", "made", "--no-consume", "--yes")
    theirs = config_of(both, "made")
    assert (theirs["retryMaxTimes"], theirs["consumeEnable"]) == ("5", "false")
    both.said("group", "delete", "made", "--offsets", "--yes")
    assert "made" not in both.said("group", "list")
