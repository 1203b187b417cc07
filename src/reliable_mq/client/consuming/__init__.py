"""Consuming: assigns queues, pulls messages, calls handlers, and applies their outcomes."""
