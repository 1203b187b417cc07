"""The walk of ARCHITECTURE.md is what a message does: one is watched from outbox to verdict."""

import pytest

from reliable_mq.cli.walk import LANDMARKS, walk
from reliable_mq.cli.walk_recorder import Landmark, WalkRecorder

pytestmark = pytest.mark.spark


def test_a_message_passes_every_station_in_the_order_of_the_walk() -> None:
    steps, verdicts = walk()

    assert [(step.station, step.function) for step in steps] == list(LANDMARKS)
    assert all(step.says for step in steps)
    assert verdicts == {"settled": 1}


def test_the_recorder_notes_each_landmark_once_and_only_while_it_is_on() -> None:
    landmarks = [Landmark("3 wire", "reliable_mq.wire.java_hash:tags_code")]
    with WalkRecorder(landmarks) as recorder:
        from reliable_mq.wire.java_hash import tags_code

        tags_code("before")
        recorder.is_on = True
        tags_code("a")
        tags_code("b")

    assert [step.function for step in recorder.steps] == [landmarks[0].function]
    assert recorder.missed == []


def test_a_landmark_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError):
        WalkRecorder([Landmark("3 wire", "reliable_mq.wire.java_hash:nowhere")])
