"""Looks for what would break a promise: in the database, in Redis, at the broker, in the settings.

Receives an application; hands on findings, each with what to do about it. It reads only, and asks
for nothing that would hold anybody up.
"""
