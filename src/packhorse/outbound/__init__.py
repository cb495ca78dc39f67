"""Calling addresses that users choose, without becoming their way into the network that we stand in."""
