"""Ledgers that the real system made, with faults that really happened; see `scene`."""
