"""Drawings of plans: the graph that is derived, as boxes and arrows."""
