"""Events in, one verdict for each message and consumer group out. Touches nothing of the world."""
