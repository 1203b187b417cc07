"""Ledgers in databases: rows as Arrow batches, in ranges, as Spark sources."""
