"""Faults under real processes: servers, workers and stores that are killed, stopped, cut off, stalled and filled up."""
