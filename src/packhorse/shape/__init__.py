"""What a job looks like to whoever looks at it: over HTTP, in a message, from Python."""
