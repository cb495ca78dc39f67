"""Collections: what the records of each kind mean. Written once, on top of the six methods of `Records`."""
