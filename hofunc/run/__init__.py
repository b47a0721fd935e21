"""Running: programs as functions, the cache of plans, and evaluation."""
