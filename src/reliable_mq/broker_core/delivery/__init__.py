"""Station 8: messages that wait: for a consumer, for their next attempt, for their time."""
