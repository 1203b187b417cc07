"""Messages become commands for a broker: which queue, which broker, how often, which end."""
