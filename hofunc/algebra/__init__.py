"""Labelled terms: what derivatives are made of, without any tensor data."""
