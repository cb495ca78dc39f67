"""JSON documents for HTTP, pages, the CLI and webhooks: per resource its types and the functions that build them."""
