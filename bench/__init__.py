"""How fast, how soon after a crash, and how large: measured on this machine, against its own disk."""
