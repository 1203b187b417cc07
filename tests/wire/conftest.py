"""The same examples in every run: a property that fails here fails everywhere."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")
