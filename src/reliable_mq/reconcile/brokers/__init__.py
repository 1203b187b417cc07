"""Ledgers of brokers: store directories and running clusters as columns, rows and Spark sources."""
