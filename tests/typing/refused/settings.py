"""Settings that a type checker refuses."""

from reliable_mq import ClientSettings, ReliableMQ

ReliableMQ("shop", resend_batch_cuont=100)  # refused: call-arg reportCallIssue
ReliableMQ("shop", resend_batch_count="100")  # refused: arg-type reportArgumentType
ReliableMQ("shop", resend_batch_count=1.5)  # refused: arg-type reportArgumentType
ReliableMQ("shop", relay="mine")  # refused: arg-type reportArgumentType
ReliableMQ("shop", retention=None)  # refused: arg-type reportArgumentType
ReliableMQ("shop", retry_waits_seconds=5)  # refused: arg-type reportArgumentType
ReliableMQ("shop", resend_batch=100)  # refused: call-arg reportCallIssue
ReliableMQ("shop", database=7)  # refused: arg-type reportArgumentType
ReliableMQ("shop", databases=["a"])  # refused: arg-type reportArgumentType
ReliableMQ("shop", middleware=[7])  # refused: list-item reportArgumentType
ClientSettings(retires=3)  # refused: call-arg reportCallIssue
ClientSettings(retries="3")  # refused: arg-type reportArgumentType
