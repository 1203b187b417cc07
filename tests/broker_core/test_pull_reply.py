"""The answer to a pull that found messages, made from a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.broker_core.requests.pull import PullExt, encode_found
from reliable_mq.wire.command import Command, encode_command, reply
from reliable_mq.wire.frame import JSON, ROCKETMQ

I64 = st.integers(0, 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
@given(
    ext=st.builds(PullExt, I32, I64, I64, I64, I32, I32), opaque=I32, body=st.binary(max_size=40)
)
def test_the_template_gives_the_bytes_of_the_general_way(
    form: int, ext: PullExt, opaque: int, body: bytes
) -> None:
    command = Command(11, opaque, serialize_type=form)
    fields = {
        "suggestWhichBrokerId": str(ext.suggested_broker),
        "nextBeginOffset": str(ext.next_offset),
        "minOffset": str(ext.min_offset),
        "maxOffset": str(ext.max_offset),
        "topicSysFlag": str(ext.topic_flag),
        "groupSysFlag": str(ext.group_flag),
    }

    assert encode_found(command, ext, body) == encode_command(
        reply(command, 0, "FOUND", fields, body)
    )
