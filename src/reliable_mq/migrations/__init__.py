"""The migrations of our tables, for Alembic: one file in `versions/` for each revision.

Receives an engine and the prefix of the tables. Brings the tables to this release. A migration only
adds, so that processes of the previous release keep working while it runs. The next release removes
what a release no longer needs. Each migration can be run again after it was killed at any point.
"""
