"""What this package tells operators: the declarations of all metrics and of all log events.

The registry of metrics, the log lines and the reference are made from these tables. Nothing here
needs an extra, or touches the world.
"""
