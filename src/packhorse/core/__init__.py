"""What is true about jobs: pure values and decisions, with no I/O, no clock and no randomness."""
