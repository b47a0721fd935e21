"""Linear algebra of matrices far from singular ones, and distances."""

from collections.abc import Iterator

from verification.programs.domain import APART
from verification.programs.row import Shape, row, shaped


def _eye(size: int) -> str:
    return f"torch.eye({size}).to({{0}})"


def _shifted(size: int) -> str:
    """Return a matrix whose diagonal outweighs the rest of each row and column, whatever the operand is."""
    return f"({{0}}.sin() + {size + 1} * {_eye(size)})"


def _is_square(x: Shape) -> bool:
    return len(x) > 1 and x[-1] == x[-2]


def _inverted(x: Shape) -> Iterator[str]:
    if _is_square(x):
        matrix = _shifted(x[-1])
        yield f"torch.linalg.inv({matrix})"
        yield f"torch.linalg.solve({matrix}, {{0}})"
        yield f"torch.linalg.solve_triangular({matrix}.tril(), {{0}}, upper=False)"


def _determinants(x: Shape) -> Iterator[str]:
    if _is_square(x):
        yield f"torch.linalg.det({_shifted(x[-1])})"
        yield f"torch.linalg.slogdet({_shifted(x[-1])})[1]"
        yield f"torch.logdet({_shifted(x[-1])})"


def _factors(x: Shape) -> Iterator[str]:
    if _is_square(x):
        yield f"torch.linalg.cholesky({{0}} @ {{0}}.mT + 2 * {_eye(x[-1])})"
        yield f"torch.linalg.qr({_shifted(x[-1])})[1]"
        yield f"torch.linalg.lu({_shifted(x[-1])})[2]"


def _spectra(x: Shape) -> Iterator[str]:
    if _is_square(x):
        apart = f"0.03 * ({{0}} + {{0}}.mT).sin() + torch.diag({{r:{x[-1]}}})"
        yield f"torch.linalg.eigvalsh({apart})"
        yield f"torch.linalg.svdvals({apart} + {_eye(x[-1])})"


def _distances(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        yield "torch.cdist({0}, {0}.sin() + 6)"  # no value is over 4
        yield "F.pairwise_distance({0}, {0}.cos() + 6)"
        yield "torch.cov({0})" if x[1] > 1 else "{0} @ {0}.mT"


MATRICES = (
    shaped("inverse", _inverted),
    shaped("determinant", _determinants),
    shaped("factorisation", _factors),
    shaped("spectrum", _spectra),
    shaped("distances", _distances, domain=APART),
    row("matrix exponential", "torch.linalg.matrix_exp(0.5 * {0})", where=_is_square),
    row("cross product", "torch.linalg.cross({0}, {0}.sin() + 1)", where=lambda x: bool(x) and x[-1] == 3),
)
