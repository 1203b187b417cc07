"""A run from its ledgers to its folder: the session, the job, increments, exports, the end."""
