"""What a run found, told: on a terminal, as a page, as metrics, to people."""
