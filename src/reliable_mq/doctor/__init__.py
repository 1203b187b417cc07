"""The doctor: check the database, Redis, the brokers and the settings for broken guarantees.

Receives an application. Returns findings, each with a remedy. The checks read only, and delay no
other process.
"""
