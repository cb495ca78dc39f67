"""The same calls from elsewhere: packhorse over HTTP, for the command line and other people's programs."""

from packhorse.client.async_client import AsyncClient
from packhorse.client.call import LOCAL, Json
from packhorse.client.sync_client import Client

__all__ = ["LOCAL", "AsyncClient", "Client", "Json"]
