"""Read the ledgers in databases, as Arrow batches in ranges, and as Spark sources."""
