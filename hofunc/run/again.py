"""The history of what a program returns as one node, at which the program is run again when a backward pass comes.

Who asks for gradients often has them planned: of the steps of the program, which are then run as part of these.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.errors import HofuncError
from hofunc.graph.identity import storage_key
from hofunc.graph.world import without_autocast
from hofunc.options import planning
from hofunc.plan.program import Program
from hofunc.rules.lower import isolated
from hofunc.run.backward import are_plain, gradients_of, placed
from hofunc.run.executor import Runner, compiled
from hofunc.run.origins import sources

OFTEN = 3  # backward passes, from which on gradients are planned, which takes as long as running some tens of them
MOST_KEPT = 4  # plans of gradients, by some of what is taken, of some of what is returned

Asked = tuple[tuple[bool, ...], tuple[bool, ...]]  # of what is taken, and of what is returned, what has gradients


class History:
    """The history of what is returned, as one node for all results of a call.

    Args:
        followed: What computes the results again.
        program: What computes them.
        is_asked: Whether anybody asked for it before.
        learns: Whether gradients are planned.

    Attributes:
        followed: What was given.
        is_asked: Whether anybody asked for it so far, of whom there is no plan.
        learns: What was given.
    """

    def __init__(
        self,
        followed: Callable[[Any], Sequence[Tensor]],
        program: Program,
        *,
        is_asked: bool = False,
        learns: bool = False,
    ):
        self.followed, self.is_asked, self.learns, self._program = followed, is_asked, learns, program
        self._sources = cache(lambda: sources(program))
        self._calls = 0
        self._known: dict[Asked, _Gradients] = {}

    def of(self, results: Sequence[Tensor], held: Mapping[int, Tensor]) -> Sequence[Tensor]:
        """Give those results a history of which what they are computed from has one."""
        followed = {number for number, tensor in held.items() if tensor.requires_grad}
        constants = [y for y, numbers in zip(results, self._sources(), strict=True) if followed.isdisjoint(numbers)]
        if len(constants) == len(results):
            return results
        known = {storage_key(tensor) for tensor in held.values()}
        keys = [storage_key(result) for result in results]
        if not known.isdisjoint(keys) or len({*keys}) < len(keys):  # which autograd would take for copies
            self.is_asked = True
            return [*self.followed({**held})]
        return [*_Again.apply(self, results, constants, tuple(held), *held.values())]

    def read_by(self, those: Sequence[bool]) -> set[int]:
        """Return the numbers of what those results are computed from."""
        return {number for numbers, one in zip(self._sources(), those, strict=True) if one for number in numbers}

    def planned(self, asked: Asked) -> "_Gradients | None":
        """Return the plan of gradients, if there is one."""
        return self._known.get(asked)

    def note(self, asked: Asked, held: Mapping[int, Tensor], found: Sequence[Tensor | None]) -> None:
        """Note that gradients were asked for, and which there are of these."""
        self._calls += 1
        if (self._calls < OFTEN and planning() != "full") or len(self._known) == MOST_KEPT:
            return
        learned = [number for number, one in zip(held, found, strict=True) if one is not None]
        try:
            with isolated():
                made = gradients_of(self._program, held, learned, [place for place, g in enumerate(asked[1]) if g])
        except HofuncError:  # of an op that has no derivative of that order: autograd tells whether it has one
            made = None
        if made is None:
            self.learns, self.is_asked = False, True
        else:
            self._known[asked] = _Gradients(compiled(made.program, takes_over=True), made.places)


class _Gradients(NamedTuple):
    """Gradients that are planned.

    Attributes:
        run: What returns them, given what was taken, and what comes back where it is wanted.
        places: Of what is taken, the place of its gradient among these, see `hofunc.run.backward.Parts`.
    """

    run: Runner
    places: tuple[int | None, ...]

    def of(self, saved: Sequence[Tensor], coming: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients by what was taken."""
        found = without_autocast(self.run, [*saved, *(each for each in coming if each is not None)])
        return placed(found, self.places, saved)


class _Again(torch.autograd.Function):
    """Runs a program again, followed, when a backward pass comes to what it returned, or what was planned of it."""

    @staticmethod
    def forward(
        ctx: Any,
        history: History,
        results: Sequence[Tensor],
        constants: Sequence[Tensor],
        numbers: Sequence[int],
        *tensors: Tensor,
    ) -> Any:
        ctx.history, ctx.numbers = history, numbers
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*constants)
        ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        history, needs, saved = ctx.history, ctx.needs_input_grad[4:], ctx.saved_tensors
        asked = tuple(needs), tuple([gradient is not None for gradient in gradients])
        is_plain = history.learns and are_plain([gradient for gradient in gradients if gradient is not None])
        history.is_asked |= not history.learns
        planned = history.planned(asked) if is_plain else None
        if planned is not None:
            return None, None, None, None, *planned.of(saved, gradients)
        found = _followed(history, dict(zip(ctx.numbers, saved, strict=True)), needs, gradients)
        if is_plain:
            history.note(asked, dict(zip(ctx.numbers, saved, strict=True)), found)
        return None, None, None, None, *found


def _followed(
    history: History, held: Mapping[int, Tensor], needs: Sequence[bool], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return gradients by steps that are run again and followed."""
    creates = torch.is_grad_enabled()
    with torch.enable_grad():
        given = [_apart(tensor, creates) if need else tensor for tensor, need in zip(held.values(), needs, strict=True)]
        again = without_autocast(history.followed, dict(zip(held, given, strict=True)))
    pairs = [(y, g) for y, g in zip(again, gradients, strict=True) if g is not None and y.requires_grad]
    wanted = {n: tensor for n, tensor, need in zip(held, given, needs, strict=True) if need}
    # Some read only signs of what they are computed from, as slopes of a ReLU do; see NOTE [history].
    level = [g is not None and not y.requires_grad for y, g in zip(again, gradients, strict=True)]
    zero = wanted.keys() & (history.read_by(level) if any(level) else ())
    found = {n: torch.zeros_like(wanted[n]) for n in zero}
    if pairs:
        results, outer = zip(*pairs, strict=True)
        slopes: Sequence[Tensor | None] = torch.autograd.grad(
            results, [*wanted.values()], outer, create_graph=creates, allow_unused=True
        )
        found |= {n: slope for n, slope in zip(wanted, slopes, strict=True) if slope is not None}
    return [*map(found.get, held)]


def _apart(tensor: Tensor, is_followed: bool) -> Tensor:
    """Return a tensor as one of which others that a program takes are not computed."""
    return tensor.view_as(tensor) if is_followed else tensor.detach().requires_grad_()
