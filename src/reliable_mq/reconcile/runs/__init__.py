"""Runs of reconciliation: session, job, increments, exports, and the output folder."""
