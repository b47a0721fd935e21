"""Operators of calculus: named contractions of derivatives, each a pattern."""
