"""Read the ledgers of brokers, from store directories and running clusters, as Spark sources."""
