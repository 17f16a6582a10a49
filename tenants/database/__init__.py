"""Database access shared by all apps: rows in one statement, in chunks, page by page."""
