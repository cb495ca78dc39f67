"""Remembering: the contract every store keeps, and the stores that keep it."""
