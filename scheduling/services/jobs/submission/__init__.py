"""Job documents of one or several people become rows: what they find, whether they may, what is
written."""
