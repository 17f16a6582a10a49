"""Guards of signing in and of staying signed in."""
