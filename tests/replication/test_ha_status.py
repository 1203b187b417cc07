"""What `mqadmin haStatus` is told of both sides."""

from reliable_mq.replication.ha_status import (
    MasterState,
    SlaveState,
    TransferRate,
    status_of_master,
    status_of_slave,
)


def test_a_rate_is_the_size_of_the_last_whole_second() -> None:
    rate = TransferRate()
    for now, size in ((10.1, 5), (10.9, 7), (11.5, 100)):
        rate.add(size, now)
    assert [rate.in_last_second(now) for now in (11.9, 12.0, 13.0)] == [12, 100, 0]


def test_a_master_tells_of_each_slave_how_far_it_is() -> None:
    near, far = SlaveState("n:1", next=90, acknowledged=80), SlaveState("f:1", acknowledged=10)
    near.rate.add(7, 4.5)
    status = status_of_master([near, far], 100, gap_max=50, now=5.5)

    rows = {row["addr"]: row for row in status["haConnectionInfo"]}
    assert (rows["n:1"]["diff"], rows["n:1"]["inSync"]) == (20, True)
    assert (rows["f:1"]["diff"], rows["f:1"]["inSync"]) == (90, False)
    assert rows["n:1"]["transferredByteInSecond"] == 7
    assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)


def test_a_slave_tells_of_its_master() -> None:
    master = MasterState(address="m:1", end=100)
    master.rate.add(9, 4.5)
    status = status_of_slave(master, 60, now=5.5)

    told = status["haClientRuntimeInfo"]
    assert (told["masterAddr"], told["masterFlushOffset"], told["maxOffset"]) == ("m:1", 100, 60)
    assert told["transferredByteInSecond"] == 9
    assert status["master"] is False
