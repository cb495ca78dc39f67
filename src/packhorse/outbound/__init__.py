"""HTTP requests to addresses that users choose, guarded against access to the internal network (SSRF)."""
