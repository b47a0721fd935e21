"""Code as people write it: in place where it is pure from outside, and transforms inside of the function."""

from collections.abc import Iterator

from verification.programs.domain import NONZERO, Domain
from verification.programs.row import Shape, broadcastable, equal, expandable, row, shaped


def _in_place(x: Shape) -> Iterator[str]:
    yield "{out} = {0}.clone()\n{out}.mul_({0}.sin())\n{out} += 0.5"
    yield "{out} = torch.zeros_like({0})\n{out}.copy_({0})\n{out}.exp_()"
    if x:
        yield "{out} = {0}.clone()\n{out}[0] = {0}[-1] * 2"
        yield "{out} = {0}.clone()\n{out}[..., :1].mul_({0}[..., -1:])"
        yield "{out} = torch.zeros_like({0})\n{out}[:1] = {0}[-1:]\n{out}[[-1]] += {0}[[0]]"
        yield "{out} = 0\nfor row in {0}:\n    {out} = {out} * 0.5 + row.sin()"
    if len(x) == 2:
        yield "{out} = {0} * 1\n{out}.diagonal().mul_(2)\n{out}.t()[0] += 1"


def _with_values_read(x: Shape) -> Iterator[str]:
    """Yield uses that read numbers of captured tensors past torch's ops, which a plan has to look at."""
    size = x[-1] if x else 2
    yield f"{{0}} * sum({{w:{size}}}.tolist())"
    yield f"{{0}} + {{w:{size}}}.sum().item()"
    yield f"{{0}} * float({{w:{size}}}[-1])"
    yield f"{{0}}.sin() * torch.tensor({{w:{size}}}.tolist()).to({{0}}).sum()"
    yield f"{{0}} - torch.from_numpy({{w:{size}}}.numpy() * 0.5).to({{0}}).sum()"
    yield f"{{0}} * torch.tensor([*{{w:{size}}}]).to({{0}}).sum()"
    yield f"{{0}} if {{w:{size}}}.sum() > 0 else {{0}} * {{0}}"
    if x:
        yield f"{{0}}[..., {{i:0,{size - 1}}}.tolist()]"


_SUB = "as_subclass(type('Sub', (torch.Tensor,), dict()))"  # one that overrides nothing


def _of_subclass(x: Shape) -> Iterator[str]:
    sizes = ",".join(map(str, x))
    yield f"{{0}}.{_SUB}.sin().as_subclass(torch.Tensor)"
    yield f"({{0}} * {{w:{sizes}}}.{_SUB}).as_subclass(torch.Tensor)"
    yield f"({{0}}.{_SUB} * {{0}}).exp().as_subclass(torch.Tensor)"
    yield f"{{out}} = {{0}}.clone().{_SUB}\n{{out}}.mul_({{0}})\n{{out}} = {{out}}.as_subclass(torch.Tensor)"


def _mapped(x: Shape) -> Iterator[str]:
    if x:
        yield "torch.func.vmap(lambda row: row.sin() * row.sum())({0})"
        yield "torch.func.vmap(lambda row: row * row.exp(), in_dims=-1, out_dims=-1)({0})"
        yield "torch.func.vmap(torch.func.grad(lambda row: row.sin().prod()))({0})"
        yield "torch.func.vmap(lambda row: row.flatten() @ row.flatten())({0})"
    if len(x) == 2:
        yield "torch.func.vmap(torch.dot)({0}, {0}.cos())"


def _differentiated(_: Shape) -> Iterator[str]:
    yield "torch.func.grad(lambda t: (t.tanh() * t).sum())({0})"
    yield "torch.func.jvp(torch.sin, ({0},), ({0} * 0.5,))[1]"
    yield "torch.func.vjp(torch.sigmoid, {0})[1]({0})[0]"
    yield "torch.func.grad(lambda t: t.exp().sum().log())({0})"
    yield "torch.func.grad(lambda t: F.logsigmoid(t * t).sum())({0})"
    yield "torch.func.grad(lambda t: (t.flatten().softmax(0)[0] + t.flatten()[:2].log_softmax(0)).sum())({0})"
    yield "torch.func.jvp(lambda t: t.exp() * t.sum(), ({0},), (torch.ones_like({0}),))[1]"


def _second(x: Shape) -> Iterator[str]:
    if len(x) == 1:
        yield "torch.func.hessian(lambda t: t.sin().prod())({0}) @ {0}"
        yield "torch.func.jacrev(lambda t: t.cumsum(0).sin())({0}).sum(0)"
        yield "torch.func.jacfwd(lambda t: t * t.sum())({0}) @ {0}"


# Where it is clear on which side of zero the sum of an operand is.
DECIDED = Domain(lambda x: abs(x.sum().item()) >= 0.5, lambda _: (("({0} + 0.57)",), ("({0} * {0} + 0.5)",)))

# torch's own derivatives of a product divide by its elements, so that those of a transform are not finite at zero.
WRITTEN = (
    shaped("in-place code", _in_place),
    row(
        "in-place code of two",
        "{out} = {0} * 1\n{out} += {1}",
        "{out} = {0}.sin()\n{out}.mul_({1})",
        "{out} = {0}.clone()\n{out}.sub_({1}).tanh_()",
        where=lambda x, y: expandable(y, x),
    ),
    shaped("values that are read", _with_values_read),
    shaped("tensor subclasses", _of_subclass),
    shaped("vmap", _mapped, domain=NONZERO),
    shaped("grad and jvp", _differentiated),
    shaped("hessian and jacobian", _second, domain=NONZERO),
    row("jvp along another", "torch.func.jvp(torch.tanh, ({0},), ({1},))[1]", where=equal),
    row(
        "vmap over one of two",
        "torch.func.vmap(lambda row: (row * {1}).sin())({0})",
        where=lambda x, y: bool(x) and broadcastable(x[1:], y),
    ),
    row("branch", "{0}.sin() if {0}.sum() > 0 else {0} * {0}", domain=DECIDED),
    row("loop", "{out} = {0}\nfor _ in range(2):\n    {out} = ({out} * {0}).sin()"),
)
