"""What a program costs: operations, bytes moved, memory held, and from these an estimate of its time.

The program is run once on meta tensors, which have shapes and no data, so that it counts the same on every machine.
"""

from functools import cache
from math import prod
from typing import NamedTuple

import torch

from hofunc.graph.node import Call
from hofunc.plan.adding import Summed, added_in_pieces
from hofunc.plan.devices import rates_of
from hofunc.plan.lookups import multiplied, products_added
from hofunc.plan.looped import Part, Work, looped
from hofunc.plan.memory import Kind
from hofunc.plan.peak import peak_of
from hofunc.plan.program import Program, Step
from hofunc.plan.rates import Rates
from hofunc.plan.slicing import is_reading
from hofunc.plan.states import PASSES, calls_of_pass
from hofunc.plan.tracing import SCATTERS, Effect, Trace, traced
from hofunc.rules.ops.convolution import work_of
from hofunc.scatter import added
from hofunc.views import folded

_PRODUCTS = (torch.mm, torch.bmm, torch.addmm, torch.matmul, folded)


class StepCost(NamedTuple):
    """What one step costs.

    Attributes:
        flops: Floating-point operations: of a matrix product or a convolution two for each product, of any other op one
            an element.
        bytes: Bytes that it reads and writes; zero for a view.
        shape: Shape of the result.
        seconds: Estimated time.
        renewing: The part of that time in which it gets memory that the system gives anew.
    """

    flops: int
    bytes: int
    shape: tuple[int, ...]
    seconds: float
    renewing: float = 0.0

    def writing_over(self) -> "StepCost":
        """Return what the step costs where it writes over one of its operands."""
        return self._replace(seconds=self.seconds - self.renewing, renewing=0.0)


class Kept(NamedTuple):
    """What a result in terms leaves to whoever reads it; nothing where results are dense.

    Attributes:
        terms: How many terms it has.
        entries: How many entries those have that are a part of the dense tensor as they are.
        placed: How many entries those have of which each is added to a place that indices tell.
    """

    terms: int = 0
    entries: int = 0
    placed: int = 0

    def seconds(self, itemsize: int, rates: Rates) -> float:
        """Return the estimated time that it takes to read it once, as a dense tensor or a sparse one.

        As a sparse one, entries of parts of the dense one are put in order as well, so that they count half of that.
        """
        entry = itemsize / rates.bytes + rates.place / 2
        return self.terms * rates.term + self.entries * entry + self.placed * rates.place


class Cost(NamedTuple):
    """What a program costs.

    Attributes:
        steps: What each of its steps costs.
        peak_bytes: The most that is held at once of what the program allocates, its results included.
        reading: Estimated time that it takes to read what it returns, if that is in terms.
        apart: The bytes of the largest tensor, if its memory is never kept.
        rates: How fast the device works.
    """

    steps: tuple[StepCost, ...]
    peak_bytes: int
    reading: float = 0.0
    apart: int = 0
    rates: Rates | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step.flops for step in self.steps)

    @property
    def bytes(self) -> int:
        """Bytes that all steps read and write."""
        return sum(step.bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        """Estimated time of all steps."""
        return self.working + self.renewing

    @property
    def working(self) -> float:
        """Estimated time of all steps, beyond what it takes to get memory that the system gives anew."""
        return sum(step.seconds for step in self.steps) - self.large

    @property
    def large(self) -> float:
        """Estimated time that it takes to get the memory of tensors that is given anew whatever else is held."""
        return sum(step.renewing for step in self.steps)

    @property
    def renewing(self) -> float:
        """Estimated time that it takes to get memory that the system gives anew."""
        regained = 0.0 if self.rates is None else self.rates.regained(max(0, self.peak_bytes - self.apart))
        return self.large + regained

    @property
    def price(self) -> float:
        """Estimated time of all steps and of reading what they return: what strategies are compared by."""
        return self.seconds + self.reading


def cost_of(program: Program, device: torch.device, trace: Trace | None = None, peak: int | None = None) -> Cost:
    """Return what a program costs on a device, without running it there.

    Args:
        program: The program.
        device: Where it is to run.
        trace: What its registers hold, if that is known.
        peak: The most that it holds at once, if that is known.
    """
    trace, standard = trace or traced(program), rates_of(device)
    rates = cache(standard.of)
    known: dict[int, StepCost] = {}
    for step, effect in zip(program.steps, trace.effects, strict=True):
        if id(effect) not in known:
            dtype = torch.float32 if effect.result is None else effect.result.dtype
            known[id(effect)] = _step_cost(step, effect, rates(dtype))
    over = dict(program.over)
    costs = zip(program.steps, [known[id(effect)] for effect in trace.effects], strict=True)
    steps = tuple([cost.writing_over() if step.target in over else cost for step, cost in costs])
    largest = max([effect.result.nbytes for effect in trace.effects if effect.result is not None], default=0)
    apart = largest if largest >= standard.large else 0
    return Cost(steps, peak_of(program, trace) if peak is None else peak, apart=apart, rates=standard)


def _nbytes(tensor: Kind) -> int:
    return tensor.numel * tensor.dtype.itemsize


def _of_body(step: Step, _: Effect, __: Kind) -> tuple[int, float]:
    return step.args[5][:2]


def _of_lookups(step: Step, effect: Effect, result: Kind) -> tuple[int, float]:
    one, other = [kind.shape for kind in effect.operands if kind.dtype == result.dtype][-2:]
    entries = effect.operands[-1].numel * one[-2] * other[-2]
    products = entries * one[-1]
    read = result.dtype.itemsize * products * (1 / one[-2] + 1 / other[-2])
    return 2 * products, read + (result.dtype.itemsize * entries if step.function is products_added else 0)


# The operations of what is done in pieces, and the bytes that are written and read again meanwhile.
_IN_PIECES = {added_in_pieces: _of_body, multiplied: _of_lookups, products_added: _of_lookups}


def _rows_in_pieces(step: Step, effect: Effect) -> int:
    """Return how many rows a step reads or adds some at a time."""
    if step.function is added_in_pieces:
        entries, body = step.args[1], step.args[4]
        return entries * sum(isinstance(each, Summed) or is_reading(each.function) for each in body)
    return _rows(effect)


def _calls_in_pieces(step: Step) -> int:
    """Return how many functions a step calls for its pieces, beside one."""
    if step.function is not added_in_pieces:
        return 0
    _, entries, size, _, _, work = step.args[:6]
    return -(-entries // size) * work.calls


def _rows(effect: Effect) -> int:
    """Return at how many indices a step reads or adds."""
    return sum(operand.numel for operand in effect.operands if operand.dtype == torch.long)


def seconds_of_loop(work: Work, rates: Rates) -> float:
    """Return how long a loop takes, which looks up what each of its steps takes, and so takes one call more for it."""
    return work.pieces * sum(rates.call + _part_seconds(part, rates) for part in work.parts)


def _loop_cost(work: Work, rates: Rates) -> StepCost:
    return StepCost(work.flops, work.bytes, (), seconds_of_loop(work, rates))


def _part_seconds(part: Part, rates: Rates) -> float:
    """Return how long a step of a loop takes for some entries."""
    if not part.products:
        return (rates.call if part.bytes else rates.view) + part.bytes / rates.bytes + part.rows * rates.row
    moving = rates.call + part.bytes / rates.bytes  # as the pieces of a tensor lie apart
    if part.products > 1:
        return moving + rates.batch(part.products, part.flops / (2 * part.products))
    return moving + rates.item + part.flops / rates.flops


def _step_cost(step: Step, effect: Effect, rates: Rates) -> StepCost:
    result = effect.result
    if result is None:
        return _loop_cost(step.args[1], rates) if step.function is looped else StepCost(0, 0, (), rates.view)
    if effect.is_view:
        return StepCost(0, 0, result.shape, rates.view)
    written = result.nbytes if step.function in SCATTERS else _nbytes(result)
    moved = written + sum(map(_nbytes, effect.operands))
    renewing = rates.renewed(written)
    seconds = rates.call + renewing
    if step.function in _PRODUCTS:
        flops = 2 * result.numel * effect.operands[-2].shape[-1]  # a sum with a product has the product last
        items = prod(result.shape[:-2]) if step.function is torch.bmm else 1
        is_batch = items > 1
        computing = rates.batch(items, flops / (2 * items)) if is_batch else rates.item + rates.multiplied(flops)
        computing += rates.uncached(moved)
        return StepCost(flops, moved, result.shape, seconds + computing, renewing)
    if step.function in _IN_PIECES:
        flops, read = _IN_PIECES[step.function](step, effect, result)
        computing = 2 * read / rates.bytes + (flops / rates.flops if step.function is not added_in_pieces else 0)
        computing += _rows_in_pieces(step, effect) * rates.row + _calls_in_pieces(step) * rates.call
        if type(step.args[0]) is tuple:  # of zeros, which are written first
            seconds += rates.call + renewing
            renewing *= 2
            computing += written / rates.bytes
        return StepCost(flops, moved, result.shape, seconds + computing, renewing)
    shapes = [operand.shape for operand in effect.operands]
    work = work_of(step.function, shapes, result.shape, result.dtype) if isinstance(step.function, Call) else None
    if work:
        columns, at_once = (count * result.dtype.itemsize for count in (work.columns, work.at_once))
        renewing += rates.renewed(at_once)
        seconds += columns / rates.bytes + rates.renewed(at_once)
        computing = 2 * work.products / rates.flops
        return StepCost(2 * work.products, moved, result.shape, seconds + computing, renewing)
    rows = _rows(effect) if step.function is added else 0
    computing = moved / rates.bytes + rows * rates.row + _passing(step, effect, rates)
    return StepCost(result.numel, moved, result.shape, seconds + computing, renewing)


def _passing(step: Step, effect: Effect, rates: Rates) -> float:
    """Return how long a pass over the steps of a recurrence takes, of which each is a product and some calls."""
    if not isinstance(step.function, Call) or step.function.op not in PASSES:
        return 0.0
    tensor, (count, height, width) = effect.operands[0], effect.operands[-1].shape
    columns = max(1, tensor.numel // (count * width))
    return rates.call * calls_of_pass(count) + count * (rates.item + 2 * height * width * columns / rates.flops)
