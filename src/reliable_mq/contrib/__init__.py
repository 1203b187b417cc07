"""Integrations of frameworks. Each module needs the extra of its name; nothing imports it.

They may import everything of this package, as `cli` may: a framework is a part of the world.
"""
