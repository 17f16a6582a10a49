"""What a cluster's own history would have been under another policy, with other nodes or other
quotas (docs/decisions/0025): asked for on pages, over REST and by `kant replay`, computed by a
process of its own."""
