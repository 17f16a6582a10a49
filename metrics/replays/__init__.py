"""Replays: what a cluster's own history would have been under another policy, with other nodes or
other quotas (docs/decisions/0025).

People request them on pages, over REST and with `kant replay`; a separate process computes them.
"""
