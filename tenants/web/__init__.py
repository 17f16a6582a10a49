"""What pages of all apps share."""
