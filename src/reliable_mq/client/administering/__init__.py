"""Administering: topics, groups, offsets, messages and facts of a cluster, for administrators."""
