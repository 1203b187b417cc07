"""Observing: hooks that see each sent and consumed message, but cannot change its outcome."""
