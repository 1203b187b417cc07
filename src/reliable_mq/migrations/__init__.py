"""The history of our tables, for Alembic: one file in `versions/` for each revision.

Receives an engine and the prefix of the tables; hands on the tables of this release. A migration
only adds, so that processes of the release before go on working while it runs; what a release no
longer needs is taken away by the one after. Each can be run again after it was killed anywhere.
"""
