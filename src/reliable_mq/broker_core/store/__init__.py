"""Station 6: a log that keeps what it acknowledged, in Apache RocketMQ's files."""
