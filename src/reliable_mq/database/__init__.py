"""The ground of all packages that keep rows: engines, sessions, tables, types, clock, faults.

Receives URLs and connections of databases. Returns engines, our tables, and the meaning of errors.
"""
