"""Sums, moments, norms, extremes and running sums."""

from collections.abc import Iterator

from verification.programs.domain import APART, EVERYWHERE, NONZERO, Domain
from verification.programs.row import Row, Shape, along, dims, row, shaped


def reduction(name: str, *calls: str, domain: Domain = EVERYWHERE, least: int = 1) -> Row:
    """Return a row of reductions over one axis, with and without keepdim.

    Args:
        name: Its name.
        calls: Each with ``{}`` in place of the axis, and ``{{0}}`` for the operand.
        domain: Where they are smooth.
        least: Size of the smallest axis that can be reduced.
    """
    kept = [call.replace("{}", "{}, keepdim=True") for call in calls]
    return along(name, *calls, *kept, domain=domain, least=least)


def _over_two(x: Shape) -> Iterator[str]:
    if len(x) > 1:
        for call in ("sum", "mean", "logsumexp", "amax"):
            yield f"{{0}}.{call}((0, -1))"
            yield f"{{0}}.{call}((-1, -2), keepdim=True)"


def _variance(x: Shape) -> Iterator[str]:
    for dim in dims(x, 2):
        yield f"{{0}}.var({dim})"
        yield f"{{0}}.var({dim}, correction=0, keepdim=True)"
        yield f"{{0}}.std({dim}, keepdim=True)"
        yield f"{{0}}.std({dim}, correction=0)"
        yield f"sum(torch.var_mean({{0}}, {dim}))"
        yield f"torch.mul(*torch.std_mean({{0}}, {dim}, keepdim=True))"


def _norms(x: Shape) -> Iterator[str]:
    yield "{0}.norm()"
    yield "torch.linalg.vector_norm({0}, 3)"
    for dim in dims(x):
        yield f"{{0}}.norm(dim={dim}, keepdim=True)"
        yield f"{{0}}.norm(p=3, dim={dim})"
        yield f"{{0}}.norm(p=1, dim={dim})"
        yield f"torch.linalg.vector_norm({{0}}, dim={dim})"


REDUCTIONS = (
    row("sum", "{0}.sum()"),
    row("mean", "{0}.mean()"),
    row("prod", "{0}.prod()"),
    row("logsumexp of all", "{0}.flatten().logsumexp(0)"),
    reduction("sum over an axis", "{{0}}.sum({})"),
    reduction("mean over an axis", "{{0}}.mean({})"),
    reduction("prod over an axis", "{{0}}.prod({})"),
    reduction("logsumexp", "{{0}}.logsumexp({})"),
    shaped("reductions over two axes", _over_two, domain=APART),
    row("extreme", "{0}.max()", "{0}.min()", "{0}.amax()", "{0}.median()", domain=APART),
    reduction("extremes over an axis", "{{0}}.amax({})", "{{0}}.amin({})", domain=APART),
    reduction("extremes with indices", "{{0}}.max({})[0]", "{{0}}.min({})[0]", "{{0}}.median({})[0]", domain=APART),
    row("variance of all", "{0}.var()", "{0}.std()", domain=APART, where=lambda x: max(x, default=1) > 1),
    shaped("variance", _variance, domain=APART),
    shaped("norm", _norms, domain=NONZERO),
    along("cumsum", "{{0}}.cumsum({})"),
    row("trace", "{0}.trace()", where=lambda x: len(x) == 2),
)
