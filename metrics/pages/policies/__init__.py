"""The pages on which operators change a cluster's policy: the form, the effect of the change before
it is saved, and the history."""
