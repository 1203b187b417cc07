"""Sending: turns messages into commands; chooses queue and broker; handles retries and batches."""
