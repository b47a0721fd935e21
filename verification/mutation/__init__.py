"""Mutation testing: how many small faults in hofunc the tests notice. Run as ``python -m verification.mutation``."""
