"""Topics, messages and the facts of a cluster, for those who look after it."""
