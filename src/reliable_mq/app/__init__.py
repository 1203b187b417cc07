"""The face of the stations that keep ledgers: `ReliableMQ`, what it declares, what it connects."""
