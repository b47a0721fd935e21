"""Benchmarks of hofunc: the asv suite, and a comparison that needs nothing but torch."""
