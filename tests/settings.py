"""A module of settings, as programs have it; the tests of plans change them."""

SCALE = 2.0
