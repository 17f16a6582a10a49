"""The cache in Redis, spoken to by a client that stays."""

from typing import Any

from django.core.cache.backends import redis


class RedisCacheClient(redis.RedisCacheClient):
    """Makes a client once: Django makes one for each command, which costs more than the command.
    There is one server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clients: dict[bool, Any] = {}

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        if write not in self._clients:
            self._clients[write] = super().get_client(key, write=write)
        return self._clients[write]


class RedisCache(redis.RedisCache):
    """As Django's."""

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = RedisCacheClient
