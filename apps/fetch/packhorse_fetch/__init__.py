"""Fetched again and again, by a clock that people set: scheduled fetching as a packhorse app."""

from packhorse_fetch.app import app, fetch

__all__ = ["app", "fetch"]
