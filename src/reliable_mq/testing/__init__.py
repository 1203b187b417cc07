"""What tests of applications use: real local servers, and stand-ins for the world's edges.

Stands outside the walk; nothing but `cli` imports it from here.
"""
