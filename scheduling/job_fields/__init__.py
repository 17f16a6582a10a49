"""The fields of a job, each defined once (`definition`); everything that needs them is derived."""
