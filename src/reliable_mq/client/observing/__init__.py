"""What sees every message on its way out and in, and changes nothing of its fate."""
