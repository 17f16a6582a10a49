"""The decision core: facts in, decisions with reasons out.

Pure: standard library and NumPy only. No clock, no randomness, no I/O, no logging. Time, seed
and policy are arguments. Source of the concepts: the Kant paper, section 3.
"""
