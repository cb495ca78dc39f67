"""Asking: the HTTP interface. Routes read like the table in the docs; errors are translated in one place."""
