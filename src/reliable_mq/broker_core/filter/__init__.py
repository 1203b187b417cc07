"""SQL92 filter expressions: which messages a subscription wants, by their properties."""
