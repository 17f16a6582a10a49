"""What autoscalers see of jobs that wait for nodes."""
