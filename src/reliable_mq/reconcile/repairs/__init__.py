"""Plan the repairs of findings, and carry them out."""
