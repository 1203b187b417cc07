"""The documentation site: its pages from docs/, and reference pages made from the code."""
