"""From what is written down anyway (events of jobs, the audit trail, samples) to the deliveries
that are due: read with a cursor, so that who writes it does nothing for webhooks."""
