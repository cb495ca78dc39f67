"""The same calls from elsewhere: packhorse over HTTP, for the command line and other people's programs."""

from packhorse.client.calls import Client, Json

__all__ = ["Client", "Json"]
