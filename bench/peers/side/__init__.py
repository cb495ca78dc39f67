"""What runs inside the environment of one contender: nothing here may import packhorse, except `ours` itself."""
