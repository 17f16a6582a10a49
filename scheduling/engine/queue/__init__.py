"""Jobs that wait and run, and the one order in which waiting jobs are asked."""
