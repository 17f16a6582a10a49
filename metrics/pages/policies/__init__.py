"""The pages on which operators change the policy of a cluster: a form, what the change would mean
before it is saved, and what was changed before."""
