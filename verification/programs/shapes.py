"""Ops that put elements elsewhere: views, reshapes, slices, indices, and what joins tensors."""

from collections.abc import Iterator
from itertools import permutations

from verification.programs.row import Shape, along, dims, equal, expandable, listed, row, same_size, shaped


def _numel(x: Shape) -> int:
    total = 1
    for size in x:
        total *= size
    return total


# Views.


def _transposed(x: Shape) -> Iterator[str]:
    if len(x) > 1:
        yield "{0}.transpose(0, -1)"
        yield "{0}.mT"
        yield "{0}.movedim(0, -1)"
        if len(x) == 2:
            yield "{0}.t()"
            yield "{0}.T"


def _permuted(x: Shape) -> Iterator[str]:
    if len(x) > 2:
        for order in permutations(range(len(x))):
            yield f"{{0}}.permute({listed(order)})"


def _reshaped(x: Shape) -> Iterator[str]:
    for shape in same_size(_numel(x)):
        if shape != x:
            yield f"{{0}}.reshape({listed(shape) or '()'})"


def _merged(x: Shape) -> Iterator[str]:
    if len(x) > 1:
        yield "{0}.flatten()"
        yield "{0}.reshape(-1)"
        yield "{0}.mT.flatten(-2)"
    if len(x) > 2:
        yield "{0}.flatten(1)"
        yield "{0}.flatten(0, 1)"
        yield "{0}.transpose(0, 1).flatten(1)"


def _split(x: Shape) -> Iterator[str]:
    for dim in dims(x, 4):
        if x[dim] % 2 == 0:
            yield f"{{0}}.unflatten({dim}, (2, {x[dim] // 2}))"
            yield f"{{0}}.unflatten({dim}, (-1, 2)).transpose({dim if dim >= 0 else dim - 1}, 0)"


def _ones(x: Shape) -> Iterator[str]:
    yield "{0}.squeeze()"
    yield "{0}.unsqueeze(0)"
    yield "{0}.unsqueeze(-1)"
    yield "{0}[..., None]"
    for dim in dims(x):
        if x[dim] == 1:
            yield f"{{0}}.squeeze({dim})"
    if len(x) > 1:
        yield "{0}.squeeze((0, -1))"
        yield "{0}[:, None]"


def _expanded(x: Shape) -> Iterator[str]:
    yield f"{{0}}.expand({listed((2, *x))})"
    for dim, size in enumerate(x):
        if size == 1:
            yield f"{{0}}.expand({listed((*x[:dim], 3, *x[dim + 1 :]))})"
    if x:
        yield f"{{0}}.unsqueeze(1).expand({listed((x[0], 2, *(-1 for _ in x[1:])))})"


def _repeated(x: Shape) -> Iterator[str]:
    yield f"{{0}}.repeat({listed([2, *(1 for _ in x)])})"
    if x:
        yield f"{{0}}.repeat({listed([*(1 for _ in x[1:]), 2])})"
        yield "{0}.repeat_interleave(2, dim=0)"
        yield f"torch.tile({{0}}, ({listed([*(1 for _ in x[1:]), 2])},))"


# Parts.


def _sliced(x: Shape) -> Iterator[str]:
    for dim in range(len(x)):
        if x[dim] > 1:
            before = ":, " * dim
            yield from (f"{{0}}[{before}{part}]" for part in ("1:", ":-1", "-1:", "::2", "1::2"))
            yield f"{{0}}.narrow({dim}, 1, {x[dim] - 1})"
            yield f"{{0}}[{before}1:] * {{0}}[{before}:-1]"


def _selected(x: Shape) -> Iterator[str]:
    for dim in dims(x):
        yield f"{{0}}.select({dim}, 0)"
        yield f"{{0}}.select({dim}, -1)"
    if x:
        yield "{0}[0]"
        yield "{0}[..., -1]"


def _taken_apart(x: Shape) -> Iterator[str]:
    for dim in dims(x, 2):
        yield f"{{0}}.split(1, {dim})[1]"
        yield f"{{0}}.chunk(2, {dim})[0]"
        yield f"torch.mul(*{{0}}.unbind({dim})[:2])"
        yield f"{{0}}.split([1, {x[dim] - 1}], {dim})[1]"
        yield f"sum({{0}}.tensor_split(2, {dim})[:1])"


def _diagonals(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        yield "{0}.diagonal()"
        yield "{0}.diag()"
        if x[1] > 1:
            yield "{0}.diagonal(1)"
    if len(x) == 3:
        yield "{0}.diagonal(0, 1, 2)"
        yield "{0}.diagonal(0, -1, 0)"
    if 0 < len(x) < 3:
        yield "torch.diag_embed({0})"
        yield "torch.diag_embed({0}, 1)"


# Other places.


def _turned(x: Shape) -> Iterator[str]:
    for dim in dims(x, 2):
        yield f"{{0}}.flip({dim})"
        yield f"{{0}}.roll(1, {dim})"
    if len(x) > 1:
        yield "{0}.flip((0, -1))"
        yield "{0}.roll((1, -1), (0, 1))"


def _triangles(x: Shape) -> Iterator[str]:
    if len(x) > 1:
        yield "{0}.tril()"
        yield "{0}.triu(1)"
        yield "{0}.tril(-1) + {0}.triu()"


def _padded(x: Shape) -> Iterator[str]:
    if x:
        yield "F.pad({0}, (1, 0))"
        yield "F.pad({0}, (0, 1), value=0.5)"
        if x[-1] > 1:
            yield "F.pad({0}, (1, -1))"
    if len(x) > 1:
        yield "F.pad({0}, (0, 0, 1, 0))"


# Indices.


def _indexed(x: Shape) -> Iterator[str]:
    if x:
        last = x[0] - 1
        yield f"{{0}}[[{last}, 0]]"
        yield f"{{0}}[{{i:0,{last},0}}]"
        yield f"{{0}}.index_select(-1, {{i:{x[-1] - 1},0}})"
        yield f"{{0}}[..., {{i:0,{x[-1] - 1}}}]"
        yield f"{{0}}.take({{i:{_numel(x) - 1},0}})"
        yield f"{{0}}.masked_select({{w:{','.join(map(str, x))}}} > -9)"
        yield "torch.gather({0}, 0, torch.zeros_like({0}, dtype=torch.int64))"
    if len(x) == 2:
        yield f"{{0}}[{{i:0,{x[0] - 1}}}, {{i:{x[1] - 1},0}}]"
        yield f"F.embedding({{i:{x[0] - 1},0,0}}, {{0}})"
        yield "{0}.gather(1, {0}.argsort(1))"
    if len(x) == 3:
        yield f"{{0}}[{{i:0,{x[0] - 1}}}, :, {{i:0,{x[2] - 1}}}]"


def _filled(x: Shape) -> Iterator[str]:
    sizes = ",".join(map(str, x))
    yield f"{{0}}.masked_fill({{w:{sizes}}} > 0, 0.5)"
    yield f"torch.where({{w:{sizes}}} > 0, {{0}}, {{0}} * 2)"
    yield f"torch.where({{w:{sizes}}} > 0, 0.3, {{0}})"
    yield f"{{0}}.masked_fill({{w:{sizes}}} > 0, {{0}}.sum())"


def _put(x: Shape, y: Shape) -> Iterator[str]:
    if not x or not expandable(y, x[1:]):
        return
    yield "torch.select_scatter({0}, {1}.expand_as({0}[0]), 0, -1)"
    yield f"{{0}}.index_put(({{i:{x[0] - 1}}},), {{1}})"
    yield "torch.slice_scatter({0}, {1}.expand_as({0}[:1]), 0, 0, 1)"
    yield "{0}.index_add(0, {i:0}, {1}.expand_as({0}[:1]))"
    if len(x) == 2:
        yield "torch.diagonal_scatter({0}, {1}.sum().expand_as({0}.diagonal()))"


# Joining.


def _joined(x: Shape, y: Shape) -> Iterator[str]:
    if x == y:
        yield "torch.stack([{0}, {1}])"
        yield "torch.stack([{0}, {1}, {0}], -1)"
    if len(x) == len(y):
        for dim in range(len(x)):
            if x[:dim] == y[:dim] and x[dim + 1 :] == y[dim + 1 :]:
                yield f"torch.cat([{{0}}, {{1}}], {dim})"
                yield f"torch.cat([{{0}}, {{1}}, {{0}}], {dim - len(x)})"


SHAPES = (
    shaped("transpose", _transposed),
    shaped("permute", _permuted),
    shaped("reshape", _reshaped),
    shaped("merging reshape", _merged),
    shaped("splitting reshape", _split),
    shaped("axes of size one", _ones),
    shaped("expand", _expanded),
    shaped("repeat", _repeated),
    shaped("slice", _sliced),
    shaped("select", _selected),
    shaped("split", _taken_apart),
    shaped("diagonal", _diagonals),
    along("unfold", "{{0}}.unfold({}, 2, 1)", least=2),
    shaped("flip and roll", _turned),
    shaped("triangle", _triangles),
    shaped("pad", _padded),
    shaped("index", _indexed),
    shaped("fill", _filled),
    shaped("scatter", _put),
    shaped("cat and stack", _joined),
    row("clone", "{0}.clone()", "{0}.contiguous()", "{0}.to(torch.float64, copy=True)", "{0}.view_as({0})"),
    row("expand as", "{0}.expand_as({0} + {1}) * {1}"),
    row("meshgrid", "torch.mul(*torch.meshgrid({0}, {1}, indexing='ij'))", where=lambda x, y: len(x) == len(y) == 1),
    row("swap", "torch.cat([{1}, {0}])", where=lambda x, y: equal(x[1:], y[1:]) and len(x) == len(y) > 0),
)
