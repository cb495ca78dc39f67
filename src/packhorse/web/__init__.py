"""Showing: the pages people look at. They ask the API as any client does, and show what it answers."""
