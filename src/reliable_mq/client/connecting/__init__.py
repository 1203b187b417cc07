"""To whom a client speaks and as whom: name servers, routes, security, heartbeats of its groups."""
