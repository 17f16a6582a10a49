"""Whether the first job of a class may start now, by quota, limits and free places."""
