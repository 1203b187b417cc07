"""The history of our tables, for `manage.py migrate`: a migration for each revision."""
