"""A list of jobs asked for with a filter that the client does not have."""

from packhorse import Client

Client().list(usr="ann")  # error: call-arg
