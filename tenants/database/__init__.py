"""What all apps ask of the database: rows by one statement, a few at a time, page by page."""
