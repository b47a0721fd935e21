"""Sorting, selection, running products and extremes, and scattering."""

from collections.abc import Iterator

from verification.programs.domain import APART, NONZERO
from verification.programs.row import Shape, along, dims, shaped


def _multiplied(x: Shape) -> Iterator[str]:
    for dim in dims(x):
        yield f"{{0}}.cumprod({dim})"
    for dim in dims(x, 2):
        yield f"{{0}}.diff(dim={dim})"
        yield f"torch.trapezoid({{0}}, dim={dim})"
        yield f"torch.cumulative_trapezoid({{0}}, dim={dim})"


def _scattered(x: Shape) -> Iterator[str]:
    sizes = ",".join(map(str, x))
    if x:
        nowhere = "torch.zeros_like({0}, dtype=torch.int64)"
        yield f"{{0}}.scatter_add(0, {nowhere}, {{0}}.sin())"
        yield f"{{0}}.scatter_reduce(0, {nowhere}, {{0}}.sin(), 'sum')"
        yield f"{{0}}.scatter_reduce(0, {nowhere}, {{0}}.sin(), 'mean', include_self=False)"
        yield "{0}.scatter(0, {0}.argsort(0), {0}.sin())"
        yield "{0}.index_copy(0, {i:0}, {0}[-1:].cos())"
        yield "{0}.index_fill(0, {i:0}, 0.5)"
        yield f"{{0}}.masked_scatter({{w:{sizes}}} > 0, {{0}}.sin())"
        yield "{0}.put({i:0}, {0}.flatten()[-1:])"


def _reduced(x: Shape) -> Iterator[str]:
    if x:
        nowhere = "torch.zeros_like({0}, dtype=torch.int64)"
        yield f"{{0}}.scatter_reduce(0, {nowhere}, {{0}} + 3, 'amax')"
        yield f"{{0}}.scatter_reduce(0, {nowhere}, {{0}}.cos() + 2, 'prod')"


ORDER = (
    along(
        "sort",
        "{{0}}.sort({})[0]",
        "{{0}}.sort({}, descending=True)[0]",
        "{{0}}.topk(1, {})[0]",
        "{{0}}.kthvalue(1, {})[0]",
        "{{0}}.quantile(0.3, {})",
        domain=APART,
    ),
    along("running extreme", "{{0}}.cummax({})[0]", "{{0}}.cummin({})[0]", domain=APART),
    shaped("running product", _multiplied, domain=NONZERO),
    along("logcumsumexp", "{{0}}.logcumsumexp({})"),
    shaped("scatter of one", _scattered, domain=APART),
    shaped("scatter with a reduction", _reduced, domain=APART),
)
