"""The JSON form of everything that leaves packhorse: over HTTP, on pages, in webhooks, from Python."""
