"""Judge events: one verdict for each message and consumer group. Pure, without input or output."""
