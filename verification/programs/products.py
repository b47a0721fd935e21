"""Contractions: products of matrices, einsum, and rank-one updates."""

from collections.abc import Iterator

from verification.programs.row import Shape, broadcastable, dims, of_rank, row, shaped


def _matmul(a: Shape, b: Shape) -> bool:
    if not a or not b:
        return False
    inner = b[-2] if len(b) > 1 else b[0]
    return a[-1] == inner and broadcastable(a[:-2], b[:-2])


def _weight(x: Shape) -> Iterator[str]:
    if x:
        yield f"{{0}} @ {{w:{x[-1]},2}}"
        yield f"{{w:{x[-1]}}} @ {{0}}" if len(x) == 1 else f"{{w:2,{x[-2]}}} @ {{0}}"
        yield f"F.linear({{0}}, {{w:3,{x[-1]}}}, {{w:3}})"
        yield f"{{0}} @ {{w:{x[-1]}}}"


def _gram(x: Shape) -> tuple[str, ...]:
    if len(x) < 2:
        return ("torch.outer({0}, {0})", "{0} @ {0}", "torch.vdot({0}, {0})") if x else ()
    return ("{0} @ {0}.mT", "{0}.mT @ {0}", "({0} * 0.5) @ {0}.transpose(-1, -2)")


def _added(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        n, m = x
        yield f"torch.addmm({{0}}, {{w:{n},2}}, {{w:2,{m}}} * {{0}}[:1])"
        yield f"torch.addmm({{w:2,2}}, {{w:2,{n}}}, {{0}} @ {{w:{m},2}}, beta=0.5, alpha=2.0)"
        yield f"torch.addmv({{w:{n}}}, {{0}}, {{0}}[0], beta=0.5)"
        yield "torch.addr({0}, {0}[:, 0], {0}[0], alpha=0.5)"
    if len(x) == 3:
        b, n, m = x
        yield f"torch.baddbmm({{w:{b},{n},{n}}}, {{0}}, {{0}}.mT)"
        yield f"torch.addbmm({{w:{n},{n}}}, {{0}}, {{0}}.transpose(1, 2), beta=0.5)"


def _alone(x: Shape) -> Iterator[str]:
    if len(x) == 1:
        yield "torch.einsum('i,j,i->ij', {0}, {0}, {0})"
    if len(x) == 2:
        yield "torch.einsum('ij,kj->ik', {0}, {0})"
        yield "torch.einsum('ij,ij,kj->k', {0}, {0}, {0})"
        yield "torch.einsum('ij,kl->jl', {0}, {0})"
        if x[0] == x[1]:
            yield "torch.einsum('ii->i', {0})"
            yield "torch.einsum('ii,jk->jk', {0}, {0})"
            yield "torch.linalg.matrix_power({0}, 3)"
    if len(x) == 3:
        yield "torch.einsum('bij,bkj->bik', {0}, {0})"
        yield "torch.einsum('bij,cij->bc', {0}, {0})"


def _together(x: Shape, y: Shape) -> Iterator[str]:
    if len(x) == 1 and len(y) == 1:
        yield "torch.outer({0}, {1})"
        yield "torch.einsum('i,j->ji', {0}, {1})"
    if len(x) == 2 and y and x[1] == y[-1]:
        yield "torch.einsum('ij,...j->...i', {0}, {1})"
        yield "torch.einsum('ij,...j->...ij', {0}, {1})"
    if len(x) == 2 and len(y) == 2 and x[0] == y[0]:
        yield "torch.einsum('ij,ik->ijk', {0}, {1})"
        yield "torch.tensordot({0}, {1}, dims=([0], [0]))"
        yield f"F.bilinear({{0}}, {{1}}, {{w:2,{x[1]},{y[1]}}})"


def _kronecker(x: Shape) -> Iterator[str]:
    if x and dims(x, 2):
        yield f"torch.kron({{0}}.contiguous(), {{w:{','.join('2' for _ in x)}}})"


PRODUCTS = (
    row("matmul", "{0} @ {1}", "torch.matmul({0}, {1})", where=_matmul),
    shaped("product with a captured tensor", _weight),
    shaped("product with itself", _gram),
    row("mm", "torch.mm({0}, {1})", where=lambda a, b: of_rank(2, 2)(a, b) and a[1] == b[0]),
    row("mm of transposed", "{0}.t() @ {1}", where=lambda a, b: of_rank(2, 2)(a, b) and a[0] == b[0]),
    row("bmm", "torch.bmm({0}, {1})", where=lambda a, b: of_rank(3, 3)(a, b) and a[0] == b[0] and a[2] == b[1]),
    row("dot", "torch.dot({0}, {1})", "torch.vdot({0}, {1})", where=lambda a, b: of_rank(1, 1)(a, b) and a == b),
    row("mv", "torch.mv({0}, {1})", where=lambda a, b: of_rank(2, 1)(a, b) and a[1] == b[0]),
    shaped("added products", _added),
    shaped("einsum of one", _alone),
    shaped("einsum of two", _together),
    shaped("kron", _kronecker),
)
