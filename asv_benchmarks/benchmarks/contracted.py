"""Every way to a contraction of a derivative, and to the training step through it: hofunc's, and those of its peers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import hofunc
from hofunc.contracted import Einsum
from hofunc.graph.record import record
from hofunc.pattern import Tree, bound, parsed
from hofunc.plan.blueprint import Limits
from hofunc.plan.planner import Quick, quickly
from hofunc.plan.wanted import Contractions
from hofunc.rules.lower import lower

from . import by_hand, jaxed, jets, loops, operators
from .contractions import Contraction, Way, mean_square
from .nests import Call
from .ways import BY_HAND, Peer, Prepared, as_it_is, of_every_kind, once_captured, once_compiled

_JITS = (
    ("hofunc jit, step", "captured", hofunc.jit),
    ("hofunc jit, step compiled", "compiled", partial(hofunc.jit, compile=True)),
)
_NESTED = {"partial": "grad)", "biharmonic": "jvp(grad)) twice"}  # in names of ways that take jvp over jvp over grad
JETS = ("Laplacian", "biharmonic", "partial")  # that directions sum up to


def ours(contraction: Contraction) -> list[Peer]:
    """Return hofunc's ways: recorded, planned, by hand or by jit, and compiled.

    A step is captured with autograd's backward pass through that, too, or its gradient is hofunc's own.
    """
    ways: dict[str, Way] = {
        "hofunc": lambda f: partial(einsum(contraction, f), operands=contraction.operands),
        "hofunc plan": lambda f: partial(plan(contraction, f), operands=contraction.operands),
        "hofunc jit": lambda f: partial(hofunc.jit(einsum(contraction, f)), operands=contraction.operands),
        "hofunc plan, compiled": lambda f: partial(plan(contraction, f).compile(), operands=contraction.operands),
    }
    kinds = ("eager", "captured", "captured", "compiled")
    found = [
        Peer(name, kind, partial(as_it_is, partial(prepared, contraction, way)))
        for kind, (name, way) in zip(kinds, ways.items(), strict=True)
    ]
    if contraction.is_step:
        way = partial(prepared, contraction, ways["hofunc plan"])
        found.append(Peer("hofunc plan, step captured", "captured", partial(once_captured, way)))
        found.append(Peer("hofunc plan, step compiled", "compiled", partial(once_compiled, way)))
        for name, kind, jit in _JITS:
            found.append(Peer(name, kind, partial(_whole_step, contraction, jit)))
    return found


def einsum(contraction: Contraction, f: Callable[..., Tensor]) -> Einsum:
    """Return hofunc's contraction of a function like that of a contraction."""
    return hofunc.einsum(f, contraction.pattern)


def plan(contraction: Contraction, f: Callable[..., Tensor] | None = None) -> hofunc.Plan:
    """Return hofunc's plan of a contraction."""
    return einsum(contraction, f or contraction.f).plan(*contraction.args, operands=contraction.operands)


def planned(contraction: Contraction) -> Quick:
    """Plan a contraction as its first call does."""
    inputs, spec = tree_flatten(contraction.args[0])
    operands = [tree_flatten(operand) for operand in contraction.operands]
    shapes = [tuple(leaf.shape) for leaf in inputs]
    given, start = [], len(inputs)
    for number, (leaves, form) in enumerate(operands):
        numbers = tuple(range(start, start + len(leaves)))
        given.append(Tree(numbers, tuple([tuple(leaf.shape) for leaf in leaves]), form, f"operands[{number}]"))
        start += len(leaves)
    slots = [Tree(tuple(range(len(inputs))), tuple(shapes), spec, "args[0]")] * contraction.order
    with torch.no_grad():
        recording = record(
            lambda leaves, _: contraction.f(tree_unflatten(leaves[: len(inputs)], spec)),
            [*inputs, *(leaf for leaves, _ in operands for leaf in leaves)],
        )
        shape = tuple(recording.values[recording.graph.outputs[0]].shape)
        output = Tree((0,), (shape,), recording.spec, "the output of f")
        meant = bound(parsed("einsum", contraction.pattern), output, slots, given)
        lowered = lower(recording.graph, recording.values, contraction.order)
        return quickly(lowered, Contractions(meant.results), compact=False, limits=Limits())


def peers(contraction: Contraction) -> list[Peer]:
    """Return all others, eager ones first, then captured, then compiled."""
    named = {**operators.ways(operators.TORCH_FUNC, contraction), "loops of autograd.grad": loops.way(contraction)}
    if jets.AVAILABLE and contraction.kind in JETS:
        named["jet-for-pytorch, standard"] = partial(jets.standard, contraction)
        if contraction.kind != "partial":
            named["jet-for-pytorch, collapsed"] = partial(jets.collapsed, contraction)
    every = of_every_kind({name: partial(prepared, contraction, way) for name, way in named.items()})
    found = [peer for peer in every if not _crashes(contraction, peer)]
    if contraction.kind == "Laplacian":
        way = partial(prepared, contraction, by_hand.way(contraction))
        made = {"forward Laplacian by hand": as_it_is, "forward Laplacian by hand, compiled": once_compiled}
        found += [Peer(name, BY_HAND, partial(make, way)) for name, make in made.items()]
    return found + (jaxed.contractions(contraction) if jaxed.AVAILABLE else [])


def _crashes(contraction: Contraction, peer: Peer) -> bool:
    """Tell whether torch 2.13 ends the process: as it captures a backward pass through jvp over jvp over grad."""
    nested = _NESTED.get(contraction.kind)
    return nested is not None and contraction.is_step and peer.kind != "eager" and nested in peer.name


def prepared(contraction: Contraction, way: Way) -> Prepared:
    """Return a way, or the training step through it, as a function of the tensors of the argument, and these."""
    inputs, spec = tree_flatten(contraction.args[0])
    if contraction.is_step:
        return _step(contraction, way), *inputs
    contracted = way(contraction.f)
    return lambda *leaves: contracted(tree_unflatten(leaves, spec)), *inputs


def _step(contraction: Contraction, way: Way) -> Callable[..., tuple[Tensor, ...]]:
    """Return the gradient of the mean square of a way by all that is learned."""
    spec = tree_flatten(contraction.args[0])[1]
    learned = [] if contraction.by_args else [leaf.clone().requires_grad_() for leaf in contraction.learned]
    contracted = way(contraction.with_learned(learned))

    def step(*leaves: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            inputs = [leaf.detach().requires_grad_() for leaf in leaves] if contraction.by_args else [*leaves]
            loss = mean_square(contracted(tree_unflatten(inputs, spec)))
            return torch.autograd.grad(loss, learned or inputs, materialize_grads=True)

    return step


def _whole_step(contraction: Contraction, jit: Callable[..., Callable[..., Any]]) -> Call:
    """Return the training step through a contraction as one program: hofunc's gradient of the mean square."""

    def loss(learned: Any) -> Tensor:
        f = contraction.with_learned(() if contraction.by_args else learned)
        args = (learned,) if contraction.by_args else contraction.args
        return mean_square(einsum(contraction, f)(*args, operands=contraction.operands))

    learned = contraction.args[0] if contraction.by_args else [leaf.clone() for leaf in contraction.learned]
    return partial(jit(hofunc.hod(loss, order=1)), learned)


def flattened(result: Any) -> Tensor:
    """Return a result of any way as one vector."""
    leaves = [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf.__array__()) for leaf in tree_leaves(result)]
    return torch.cat([leaf.detach().reshape(-1) for leaf in leaves])
