"""The client's connections and identity: name servers, routes, security, heartbeats of groups."""
