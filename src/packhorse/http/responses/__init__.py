"""Writing responses: problems, downloads, streams, ETags."""
