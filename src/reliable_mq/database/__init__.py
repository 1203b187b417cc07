"""The floor under every station that keeps rows: table definitions, column types, clock, faults.

Receives URLs and connections of databases; hands on what our tables are, and what errors mean.
"""
