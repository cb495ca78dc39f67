"""packhorse beside other job queues, each in an environment of its own."""
