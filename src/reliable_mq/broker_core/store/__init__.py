"""Station 6, the store: a log that keeps what it acknowledged, in Apache RocketMQ's files."""
