"""packhorse over HTTP: the clients for the command line and for other people's programs."""

from packhorse.client.call import Json
from packhorse.client.clients import AsyncClient, Client
from packhorse.client.server import LOCAL

__all__ = ["LOCAL", "AsyncClient", "Client", "Json"]
