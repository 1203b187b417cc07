"""The bundled broker's decisions: commands in, turns out.

Receives commands and the time; hands on what to append and what to answer once it is durable;
refuses to know sockets, threads and the clock.
"""
