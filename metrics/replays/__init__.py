"""What a cluster's own history would have been under another policy or with other nodes
(docs/decisions/0025): asked for on pages and over REST, computed by a process of its own."""
