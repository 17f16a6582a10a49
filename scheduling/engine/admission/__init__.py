"""Whether the first job of the queue may start now, by quota, limits and free places."""
