"""Guards for signing in and staying signed in."""
