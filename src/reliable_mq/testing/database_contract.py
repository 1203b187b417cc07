"""The contract of a database: what the promises ask of rows, keys and transactions.

    class TestMyDatabase(DatabaseContract):
        @pytest.fixture
        def database(self) -> Database:
            return Database("…", prefix="rmq_", connections=4)  # an empty one

See `contracts` for how it is run. What it holds is what the promises rest on: a unique key that
lets a second writer wait and then lose, updates fenced by an owner's name or token, savepoints that
take back exactly what was written in them, two transactions that see each other once they have
waited. `sender_contract` has what senders ask, `consumer_contract` what consumers ask.

A database that speaks PostgreSQL's or MySQL's protocol and SQL needs no more than its URL; one that
takes PostgreSQL's SQL under a name of its own is made known by `register_like_postgresql`.
"""

from reliable_mq.testing.consumer_contract import ConsumerContract
from reliable_mq.testing.sender_contract import SenderContract


class DatabaseContract(SenderContract, ConsumerContract):
    """What a database promises. A subclass gives it, by the fixture `database`."""
