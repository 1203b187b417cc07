"""Queues become deliveries: who reads which, from where, how far, and what an outcome means."""
