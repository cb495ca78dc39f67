"""Keeping bytes: the contract of an object store, and the stores that keep it."""
