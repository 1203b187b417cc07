"""The client without an application: threads and asyncio."""

from collections.abc import Sequence

from reliable_mq import (
    AsyncClient,
    AsyncPullConsumer,
    AsyncSimpleConsumer,
    AsyncTransaction,
    Client,
    ClientSettings,
    Consumed,
    Decision,
    GroupChange,
    Message,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    Reject,
    Retry,
    SendResult,
    SimpleConsumer,
    Sql,
    Subscription,
    TopicChange,
    Transaction,
)

SETTINGS = ClientSettings(namespace="shop", retries=2, compression="zlib", pull_bytes=1024)
WANTED = Subscription(group="g", topics={"orders": "paid", "bills": Sql("amount > 3")}, batch=2)


def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Consumed | Retry | Reject]:
    """Return one outcome for each message."""
    return [Consumed() if message.body else Reject("empty") for message in messages]


async def handle_async(messages: Sequence[ReceivedMessage]) -> Consumed | Retry | Reject:
    """Return one outcome for all."""
    return Retry(after=1.0, counts=False) if messages else Consumed()


def decide(asked: object) -> Decision:
    """Answer a check-back."""
    print(asked)
    return Decision.UNKNOWN


def with_threads() -> None:
    """Use every verb of `Client`."""
    with Client("127.0.0.1:9876", settings=SETTINGS) as client:
        stored: SendResult = client.send(Message(topic="orders", body=b"1", keys=("k",)))
        client.send_oneway(Message(topic="orders", body=b"1"))
        print(client.send_async(Message(topic="orders", body=b"1")).result().queue_offset)
        print(client.send_many([Message(topic="orders", body=b"1")]))
        with client.batcher() as batcher:
            batcher.put(Message(topic="orders", body=b"1"))
        client.consume(WANTED, handle).close()
        client.consume(WANTED, handle_async).lag()
        simple: SimpleConsumer = client.simple_consumer(WANTED)
        for message in simple.receive(10):
            simple.ack(message)
            simple.retry(message, after=5.0)
            simple.reject(message, "bad")
        pull: PullConsumer = client.pull_consumer("g")
        pull.subscribe({"orders": "*"})
        queue: MessageQueue = stored.queue
        print([message.tag for message in pull.poll(timeout=1.0)], queue.broker_name)
        pull.commit()
        client.join_transactions("cashiers", decide)
        half = client.send_half(Message(topic="bills", body=b"7"), "cashiers")
        client.end_half(half, Decision.COMMIT)
        client.create_topic("bills", 1)
        client.admin.topics.create("invoices", queues=2)
        client.admin.topics.update("invoices", TopicChange(permission="r"))
        client.admin.groups.update("booking", GroupChange(retries_max=3))
        told = client.admin.offsets.progress("booking")
        print(told.value.lag, told.failures)
        for message in client.admin.messages.between("invoices"):
            print(message.keys)


async def with_asyncio() -> None:
    """Use every verb of `AsyncClient`."""
    async with AsyncClient("127.0.0.1:9876", settings=SETTINGS) as client:
        stored: SendResult = await client.send(Message(topic="orders", body=b"1"))
        consumer = await client.consume(WANTED, handle)
        print(consumer.queues, stored.recall_handle)
        await consumer.close()
        simple: AsyncSimpleConsumer = await client.simple_consumer(WANTED)
        for message in await simple.receive(10):
            await simple.ack(message)
        pull: AsyncPullConsumer = client.pull_consumer("g")
        await pull.subscribe({"orders": "*"})
        print([message.body for message in await pull.poll(timeout=1.0)])
        print(await client.request(Message(topic="questions", body=b"?")))
        await client.admin.topics.delete("orders")


def in_block(tx: Transaction) -> str:
    """Take a block as an argument."""
    return tx.send("orders", {"id": 1})


async def in_async_block(tx: AsyncTransaction) -> str:
    """Take an asyncio block as an argument."""
    return await tx.send("orders", {"id": 1})
