"""The decision core: facts in, decisions with reasons out.

Pure: standard library and NumPy only; no clock, no randomness, no I/O, no logging. Time and policy
are arguments. The concepts come from the Kant paper, section 3.
"""
