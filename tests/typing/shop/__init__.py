"""A user's project that uses everything public; mypy and pyright check it, both strict."""
