"""Station 15: three ledgers become one verdict for every message and consumer group.

Receives the tables of the application, the broker's own files, and a moment. Hands on verdicts with
their evidence, and what would repair them. Refuses to know the code paths that it audits: it reads
tables and files by itself and shares with them only the formats (`wire`) and the tables' columns.

V1: every (message id, consumer group) of the union of the ledgers gets exactly one verdict.
V2: a run changes nothing but its own tables and its output directory, unless repair is asked for.
"""
