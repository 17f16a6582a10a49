"""What happened on clusters and in their organisation, as one stream."""
