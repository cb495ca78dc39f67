"""Every HTTP call, described once for both clients."""
