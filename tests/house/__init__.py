"""What it costs to live in this house: the length of a message's walk, and figures of the tree."""
