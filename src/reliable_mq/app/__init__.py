"""The public interface of the stations with ledgers: `ReliableMQ` and its connections."""
