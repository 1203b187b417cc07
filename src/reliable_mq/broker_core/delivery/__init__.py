"""Station 8, delivery: messages that wait for a consumer, for a retry, or for their due time."""
