"""What is known not to pass, with reasons: the only list of it."""

# Derivatives that are by definition not those of the function, so that differences have no say.
CONVENTIONS: dict[str, str] = {
    "nn.functional.cosine_embedding_loss": "the target, which chooses between two losses, is among the inputs",
    "nn.functional.hinge_embedding_loss": "the target, which chooses between two losses, is among the inputs",
    "normal": "torch takes what is drawn for a constant, whatever its mean and deviation",
    "normal.number_mean": "torch takes what is drawn for a constant, whatever its mean and deviation",
    "linalg.norm.subgradients_at_zero": "at its kink; torch's second derivatives of spectral norms are nan there",
    "round.decimals_3": "a stair, with steps that are narrower than those of the differences",
}
_FAILURES: dict[str, tuple[str, ...]] = {
    "torch's gradient of it is wrong, so that hofunc refuses it": ("as_strided_scatter",),
    "a sparse tensor on the way": ("to_sparse",),
    "planned for about as long as the limit at order 3": (
        "nn.functional.ctc_loss",
        "svd_lowrank",
    ),
    "vectors of full_matrices=True that no singular value has, of which the samples leave out the derivatives": (
        "linalg.svd",
        "svd",
    ),
}

EXPECTED: dict[str, str] = {name: reason for reason, names in _FAILURES.items() for name in names}

# The same of complex samples.
_COMPLEX_FAILURES: dict[str, tuple[str, ...]] = {
    "the vectors of a singular value may be turned by a phase": ("pca_lowrank", "svd_lowrank"),
    "torch's gradient of it is wrong, so that hofunc refuses it": ("as_strided_scatter",),
    "complex numbers without a rule on the way": ("logcumsumexp",),
    "a sample at which torch's nested modes differ from each other too": ("cov",),
    "planned for about as long as the limit": (
        "linalg.pinv",
        "linalg.pinv.singular",
        "pinverse",
    ),
}

EXPECTED_COMPLEX: dict[str, str] = {name: reason for reason, names in _COMPLEX_FAILURES.items() for name in names}
