"""What a signature covers, and that nothing leaves without one."""

import asyncio

import pytest

from reliable_mq.errors import MessageRefused
from reliable_mq.message import Message, MessageQueue, ReceivedMessage
from reliable_mq.message_checks import properties_of
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.signature import signer_of
from reliable_mq.testing.faults import Faults
from reliable_mq.testing.manual_clock import ManualClock
from reliable_mq.testing.memory_broker import MemoryBroker
from reliable_mq.testing.memory_client import MemoryClient
from reliable_mq.wire.properties import decode_properties

NEW = "2026:" + "n" * 24
ID = "A" * 32


def came(properties: dict[str, str]) -> ReceivedMessage:
    """Return a message with these properties as a consumer gets it."""
    queue = MessageQueue("orders", "broker-a", 0)
    return ReceivedMessage(
        topic="orders", body=b"{}", queue=queue, queue_offset=0, properties=properties
    )


@pytest.mark.parametrize("name", ["CORRELATION_ID", "TTL", "INSTANCE_ID", "baggage", "note"])
def test_no_property_that_a_sender_may_write_can_be_changed(name: str) -> None:
    signer = signer_of(NEW)
    assert signer is not None
    sent = Message("orders", b"{}", message_id=ID, properties={name: "tenant=1"})
    stored = decode_properties(properties_of(signer.signed(sent)))

    assert signer.fault_of(came(stored)) == ""
    assert signer.fault_of(came({**stored, name: "tenant=2"})) != ""
    assert signer.fault_of(came({**stored, name: ""})) != ""
    assert signer.fault_of(came({**stored, "tracestate": "a=1"})) != ""


def test_a_stub_of_before_with_such_a_name_is_sent_and_passes() -> None:
    signer = signer_of(NEW)
    assert signer is not None
    old = Stub(seq=1, message_id=ID, topic="orders", content=b"{}", properties={"CLUSTER": "mine"})
    stored = decode_properties(properties_of(signer.signed(message_of(old))))
    queue = MessageQueue("orders", "broker-a", 0)
    came = ReceivedMessage(
        topic="orders",
        body=b"{}",
        queue=queue,
        queue_offset=0,
        properties={**stored, "CLUSTER": "DefaultCluster"},
    )

    assert signer.fault_of(came) == ""


@pytest.mark.parametrize("verb", ["send", "send_many", "send_batch", "send_oneway"])
def test_a_message_that_cannot_be_signed_is_refused(verb: str) -> None:
    def sign(message: Message) -> Message:
        raise OSError("no key at hand")

    async def send() -> None:
        client = MemoryClient(
            *(MemoryBroker(clock), clock, Faults()), number=1, producer_group="p", sign=sign
        )
        if verb in {"send_many", "send_batch"}:
            results = await getattr(client, verb)([order])
            raise results[0]
        await getattr(client, verb)(order)

    clock = ManualClock()
    order = Message("orders", b"{}", message_id=ID)
    with pytest.raises(MessageRefused, match="cannot be signed: OSError"):
        asyncio.run(send())
