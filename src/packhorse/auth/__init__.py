"""Who is calling and how often: keys, sessions, client addresses, rate limits."""
