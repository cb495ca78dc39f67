"""Reading requests: bodies, forms, queries and what they select."""
