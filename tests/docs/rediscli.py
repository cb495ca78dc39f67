"""Stands for `redis-cli`, which the wheel with the server has not: `-u URL COMMAND ...` as it is sent by a client."""

from __future__ import annotations

import sys

import redis

if __name__ == "__main__":
    _, _, url, *words = sys.argv
    with redis.Redis.from_url(url, protocol=2) as client:
        told = (
            client.execute_command(" ".join(words[:2]), *words[2:]) if words[0] == "CONFIG" else client.info(words[1])
        )
    print("\n".join(f"{name}:{value}" for name, value in told.items()) if isinstance(told, dict) else told)
