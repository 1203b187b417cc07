"""SQL92 filter expressions: they select a subscription's messages by properties."""
