"""The only place of sockets, the event loop, threads, fsync and the clock."""
