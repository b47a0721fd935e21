"""The rules of all known ops; importing this package enters them into the registry."""

from hofunc.rules import (
    attention,
    composite,
    elementwise,
    indexing,
    linear,
    losses,
    maps,
    multilinear,
    norms,
    reshape,
    slices,
    softmax,
    strided,
)

__all__ = [
    "attention",
    "composite",
    "elementwise",
    "indexing",
    "linear",
    "losses",
    "maps",
    "multilinear",
    "norms",
    "reshape",
    "slices",
    "softmax",
    "strided",
]
