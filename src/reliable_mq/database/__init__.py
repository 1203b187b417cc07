"""The floor under every station that keeps rows: engines, sessions, tables, types, clock, faults.

Receives URLs and connections of databases; hands on engines, our tables, and what errors mean.
"""
