"""What a slave delivers to other masters: in order, each once, and known as delivered only then."""

from random import Random

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld
from tests.replication.slave_world import Slave, a_master

from reliable_mq.broker_core.delivery.elsewhere import (
    WINDOW,
    DeliveriesElsewhere,
    Elsewhere,
    TopicQueues,
    queue_for,
    send_of,
)
from reliable_mq.broker_core.progress_of_slaves import questions, take_progress
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.properties import (
    RETRY_TOPIC,
    UNIQ_KEY,
    decode_properties,
)

ACTS = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"}


class Acting(Slave):
    """A slave that stands in when it is told to, and keeps what other masters have got."""

    def __init__(self, master: BrokerWorld) -> None:
        self.got: list[bytes] = []
        self.seconds = 0.0
        super().__init__(master, **ACTS)

    def start(self) -> None:
        super().start()
        self.state.stand_in.knows_progress = True

    def stand_in(self) -> DeliveriesElsewhere:
        self.core.deliver_elsewhere(self.now_ms)
        deliveries = self.state.stand_in.deliveries
        assert deliveries is not None
        return deliveries

    def take(self) -> list[Elsewhere]:
        deliveries = self.state.stand_in.deliveries
        assert deliveries is not None
        deliveries.invariants()
        return deliveries.take(self.now_ms, self.seconds)

    def answer(self, one: Elsewhere, code: int = ResponseCode.SUCCESS) -> None:
        deliveries = self.state.stand_in.deliveries
        assert deliveries is not None
        if deliveries.answered(one, code, self.now_ms, self.seconds):
            self.got.append(one.message.body)
        deliveries.invariants()

    def run(self, rounds: int = 10) -> None:
        """Deliver all that is due."""
        for _ in range(rounds):
            for one in self.take():
                self.answer(one)
            self.seconds += 0.1


def a_pair() -> tuple[BrokerWorld, Acting]:
    master = a_master()
    return master, Acting(master)


def give_back(slave: Acting, master: BrokerWorld) -> None:
    """Have the master take the progress of its slave over."""
    slave.core.give_way()
    for question in questions():
        answer = slave.ask(question.code, question.ext_fields)
        take_progress(master.state, question.code, answer, master.now_ms)


def test_delayed_messages_are_taken_in_order_and_count_when_they_are_accepted() -> None:
    master, slave = a_pair()
    for number in range(5):
        master.send(b"%d" % number, DELAY="1")
    slave.follow()
    slave.stand_in()
    assert slave.take() == [], "not due"
    slave.pass_time(1_100)
    taken = slave.take()
    assert [one.message.body for one in taken] == [b"0", b"1", b"2", b"3", b"4"]
    assert slave.take() == [], "they are on their way"
    for number in (1, 4, 0):
        slave.answer(taken[number])
    assert slave.state.schedule.saved()[1] == 2, "2 is not accepted yet"
    slave.answer(taken[2])
    slave.answer(taken[3])
    assert slave.state.schedule.saved()[1] == 5


def test_what_nobody_takes_is_sent_again_later_and_nothing_behind_it_begins() -> None:
    master, slave = a_pair()
    for number in range(WINDOW + 3):
        master.send(b"%d" % number, DELAY="1")
    slave.follow()
    slave.stand_in()
    slave.pass_time(1_100)
    taken = slave.take()
    assert len(taken) == WINDOW
    for one in taken[1:]:
        slave.answer(one)
    slave.answer(taken[0], ResponseCode.SYSTEM_BUSY)
    assert slave.take() == []
    for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        slave.seconds += pause - 0.01
        assert slave.take() == []
        slave.seconds += 0.02
        (again,) = slave.take()
        assert again == taken[0]
        slave.answer(again, ResponseCode.SYSTEM_BUSY)
    slave.seconds += 6
    slave.run()
    assert sorted(map(int, slave.got)) == [*range(WINDOW + 3)]
    assert slave.state.schedule.saved()[1] == WINDOW + 3


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE]
)
def test_a_master_without_slaves_has_stored_the_message(code: ResponseCode) -> None:
    master, slave = a_pair()
    master.send(b"1", DELAY="1")
    slave.follow()
    slave.stand_in()
    slave.pass_time(1_100)
    (one,) = slave.take()
    slave.answer(one, code)
    assert slave.state.schedule.saved()[1] == 1


def test_a_message_for_another_attempt_goes_to_the_retry_topic_with_its_attempts() -> None:
    master, slave = a_pair()
    master.send(b"fails")
    (record,) = master.records(TOPIC)
    back = {"offset": record.commit_log_offset, "group": "payments", "delayLevel": 1}
    assert master.ask(36, back).code == ResponseCode.SUCCESS
    slave.follow()
    slave.stand_in()
    slave.pass_time(1_100)
    (one,) = slave.take()
    command = send_of(one.message, 3, "inner")
    fields = command.ext_fields
    assert (fields["b"], fields["e"], fields["j"], fields["l"]) == (
        "%RETRY%payments",
        "3",
        "1",
        "2",
    )
    properties = decode_properties(fields["i"])
    assert properties[RETRY_TOPIC] == TOPIC
    assert properties[UNIQ_KEY] == record.property_map()[UNIQ_KEY]
    assert "DELAY" not in properties, "it would wait again"
    other = BrokerWorld(None)
    other.subscribe(TOPIC)
    assert other.ask(command.code, {**fields, "e": 0}, command.body).code == ResponseCode.SUCCESS
    (stored,) = other.records("%RETRY%payments")
    assert (stored.body, stored.reconsume_times) == (b"fails", 1)


def test_messages_of_one_queue_go_to_one_queue_and_pass_over_who_is_away() -> None:
    places = [TopicQueues("a:1", 2), TopicQueues("b:1", 3)]
    assert [queue_for(places, n, lambda _: False) for n in range(6)] == [
        *(("a:1", 0), ("a:1", 1), ("b:1", 0), ("b:1", 1), ("b:1", 2), ("a:1", 0)),
    ]
    assert queue_for(places, 0, lambda address: address == "a:1") == ("b:1", 0)
    assert queue_for(places, 0, lambda _: True) == ("a:1", 0), "one of them may be back"
    assert queue_for([], 0, lambda _: False) is None


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_jumps_loses_nothing_and_repeats_nothing(jump_ms: int) -> None:
    """Forward, messages come early. Back, they wait for their time, as at a master."""
    master, slave = a_pair()
    sent = [b"%d" % number for number in range(20)]
    for body in sent[::2]:
        master.send(body, DELAY="1")
    for body in sent[1::2]:
        master.send(body, TIMER_DELIVER_MS=str(master.now_ms + 2_000))
    slave.follow()
    slave.stand_in()
    slave.pass_time(500)
    slave.run()
    slave.now_ms += jump_ms
    slave.run()
    slave.now_ms -= jump_ms
    slave.pass_time(3_000)
    slave.run()
    assert sorted(slave.got) == sorted(sent)
    master.pass_time(200)
    master.stop()
    master.start()
    give_back(slave, master)
    master.send(b"later", DELAY="1")
    master.send(b"last", TIMER_DELIVER_MS=str(master.now_ms + 2_000))
    master.pass_time(5_000)
    assert sorted(each.body for each in master.records(TOPIC)) == [b"last", b"later"]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_message_comes_once_from_one_of_both(seed: int) -> None:
    """The slave stands in again and again, other masters refuse, and the slave is killed."""
    random = Random(seed)
    master, slave = a_pair()
    sent: list[bytes] = []
    for _ in range(random.randrange(2, 6)):
        for _ in range(random.randrange(1, 15)):
            body = b"%d" % len(sent)
            wait = random.choice((1, 40, 999, 1_000, 1_001, 5_000, 20_000))
            if random.random() < 0.5:
                master.send(body, DELAY=random.choice("12"))
            else:
                master.send(body, TIMER_DELIVER_MS=str(master.now_ms + wait))
            sent.append(body)
            if random.random() < 0.3:
                step = random.choice((50, 300, 1_000, 2_500))
                master.pass_time(step)
                slave.now_ms = master.now_ms
        for _ in range(2):
            slave.follow()
        if random.random() < 0.3:  # the slave lacks the end of the log
            master.send(b"%d" % len(sent), DELAY="1")
            sent.append(b"%d" % len(sent))
        slave.stand_in()
        for _ in range(random.randrange(30)):
            slave.pass_time(random.choice((50, 300, 1_000)))
            taken = slave.take()
            random.shuffle(taken)
            for one in taken:
                is_refused = random.random() < 0.2
                slave.answer(one, ResponseCode.SYSTEM_BUSY if is_refused else ResponseCode.SUCCESS)
            slave.seconds += 0.3
        slave.seconds += 10
        slave.run(40)  # until nothing has failed
        master.now_ms = slave.now_ms
        (master.stop if random.random() < 0.5 else master.finish_turn)()
        master.start()
        give_back(slave, master)
        if random.random() < 0.3:
            slave.state.timers.followed.save()
            slave.stop()
            slave.start()
    master.pass_time(40_000)
    came = [each.body for each in master.records(TOPIC)] + slave.got
    assert sorted(map(int, came)) == [*range(len(sent))]


def test_a_former_master_says_nothing_of_what_it_has_delivered_until_it_has_followed() -> None:
    """Its deliveries may be in the part of its log that was cut: they would be lost."""
    master, slave = a_pair()
    master.send(b"1", DELAY="1")
    slave.follow()
    slave.state.schedule.delivered_elsewhere(1, 1, slave.now_ms)
    slave.state.stand_in.knows_progress = False
    give_back(slave, master)
    assert master.state.schedule.next_of(1) == 0
    slave.state.stand_in.knows_progress = True
    give_back(slave, master)
    assert master.state.schedule.next_of(1) == 1


def test_what_a_former_master_has_delivered_is_replaced_by_what_its_master_says() -> None:
    master, slave = a_pair()
    master.send(b"1", DELAY="1")
    slave.follow()
    slave.state.schedule.load('{"offsetTable":{1:1},"dataVersion":{}}')
    slave.tables.lost()
    slave.follow()
    assert slave.state.schedule.next_of(1) == 0
    slave.stand_in()
    slave.pass_time(1_100)
    slave.run()
    assert slave.got == [b"1"]
    slave.tables.lost()
    slave.follow()
    assert slave.state.schedule.next_of(1) == 1, "what other masters got stays delivered"
