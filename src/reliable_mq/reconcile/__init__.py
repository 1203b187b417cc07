"""Station 15, reconcile: compare three ledgers, and give each message and group one verdict.

Receives the tables of the application, the files of the brokers, and a moment. Returns verdicts,
their evidence, and possible repairs. It does not use the code that it audits: it reads tables and
files by itself. It shares only the formats (`wire`) and the tables' columns with that code.

V1: every (message id, consumer group) of the union of the ledgers gets exactly one verdict.
V2: a run changes only its own tables and its output directory, unless a repair is requested.
"""
