"""Doing: admitting jobs, running their stages, and cleaning up after whatever went wrong."""
