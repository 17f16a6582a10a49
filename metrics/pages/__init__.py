"""The pages with figures: overview, operations, nodes, policies, usage, replays."""
