"""One module per page: its routes and what it shows."""
