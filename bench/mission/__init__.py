"""The real use case: files in, three stages, live progress, the result out; packhorse beside hand-written stacks."""
