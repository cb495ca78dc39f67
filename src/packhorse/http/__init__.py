"""The HTTP API. Routes match the table in the docs; errors become problems in one place."""
