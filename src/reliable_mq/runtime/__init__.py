"""The layer with sockets, event loop, threads, fsync and clocks; no other layer has these."""
