"""Showing: the page. It talks to the API like any other client."""
