"""Use cases about jobs, called by HTTP, pages, the SDK and the CLI: submit, change, explain, promote."""
