"""The messaging of the shop. Every other module imports `mq` from here."""

from reliable_mq import ReliableMQ

mq = ReliableMQ("shop")  # broker, database and Redis come from RELIABLE_MQ_… variables

# The web process imports no consumers. It must know who has to read its messages.
ORDERS = mq.topic("orders", groups=["payments"])
