"""Benchmarks of hofunc: the asv suite, and a comparison with peers that needs nothing but torch."""
