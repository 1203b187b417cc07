"""Station 13, escalate: report what no program can finish to people, and carry out their decisions.

Receives stuck stubs and dead letters. Returns alerts, timelines, retried stubs and voided stubs.
"""
