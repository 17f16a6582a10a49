"""The fields of a job, each defined once (`definition`); all that knows them is made from that."""
