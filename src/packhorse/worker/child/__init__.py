"""The process that runs user code. It holds no store, no objects and no secrets: only a socket to its supervisor."""
