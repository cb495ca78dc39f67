"""Jobs in Redis or Valkey."""

from packhorse.store.redis.store import RedisStore as RedisStore
