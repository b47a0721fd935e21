"""Recording for replay: every tensor that a function takes, passed or captured, is an input of its graph.

For one call a tensor that the function captured, and all that it computes from such tensors alone, may stand in the
graph as values. A graph that is to be replayed must compute them again, since a captured weight may have been trained
meanwhile, and since autograd goes back through a value only once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.errors import UntracedError
from hofunc.graph.draws import Generators, drawn_again, draws, generator_of
from hofunc.graph.facts import Facts, form_of
from hofunc.graph.holding import Holding, of_slot, of_storage
from hofunc.graph.identity import (
    alias_of,
    check_elements,
    innermost,
    lasting,
    root_of,
    storage_key,
    tensors_in,
    variable_of,
)
from hofunc.graph.layout import layout_of
from hofunc.graph.lines import Lines, noting_lines
from hofunc.graph.memory import is_literal
from hofunc.graph.node import CONSTANT, Graph, Node
from hofunc.graph.objects import Witness
from hofunc.graph.readings import Reading, ReadingTape
from hofunc.graph.reads import Reads
from hofunc.graph.record import check_asked
from hofunc.graph.recording import Recording
from hofunc.graph.scratch import Scratch
from hofunc.graph.settled import Reliance, Settling
from hofunc.graph.spots import Spots
from hofunc.graph.world import state, uncached_autocast
from hofunc.internals import DisableTorchFunctionSubclass, TreeSpec, identity_of, tree_flatten
from hofunc.internals_scripts import Script, attributes_of

_LIFT_FRESH = torch.ops.aten.lift_fresh.default


class Replayable(NamedTuple):
    """A recording of which nothing that its tensors decide is left out.

    Attributes:
        recording: The recording.
        readings: The values that the function read.
        facts: What else it depends on, the tensors that it captured among it, which are the last inputs of the graph.
        asked_history: Whether it asked if autograd follows a tensor.
        asked_layout: Whether it asked how a tensor lies in memory.
    """

    recording: Recording
    readings: list[Reading]
    facts: Facts
    asked_history: bool
    asked_layout: bool


class CapturingTape(ReadingTape):
    """A tape that makes an input of every tensor that reaches an op and was made by none.

    Attributes:
        holdings: What attributes of captured tensors held.
        scripts: What those of modules of TorchScript held, before their methods ran.
        asked_history: Whether it asked if autograd follows a tensor that it was given or computed.
        asked_layout: Whether it asked how one lies in memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holdings: list[Holding] = []
        self.scripts: list[Holding] = []
        self.asked_history = self.asked_layout = False
        self.spots = self.ledger.spots = Spots(inputs_are_own=False)
        self._made: dict[int, torch.Tensor] = {}  # by id, which a tensor keeps while it is alive
        self._memory: set[int] = set()  # the keys of the storages of these
        self._own: set[int] = set()  # and of those that ops made, which hold nothing that was captured

    def runs(self, script: Script) -> None:
        """Note what a script may read."""
        self.scripts += [of_slot("a module of TorchScript", owner, label) for owner, label in attributes_of(script)]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        with DisableTorchFunctionSubclass():
            if func is not _LIFT_FRESH or not is_literal(func, *args):
                self.capture((args, kwargs))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        taken = [] if func is _LIFT_FRESH else tensors_in((args, kwargs))  # what it takes was made of numbers just now
        given, made = {*map(storage_key, taken)}, tensors_in(out)
        self._made.update((id(leaf), leaf) for leaf in made)
        self._own.update({*map(storage_key, made)} - given - self._memory)
        self._memory.update(map(storage_key, made))
        return out

    def read(self, tensors: Sequence[torch.Tensor], by: str) -> None:
        """Note that the numbers in tensors are read past the ops."""
        self.capture(tensors)
        super().read(tensors, by)
        for tensor in tensors:
            self.spots.leave(tensor)

    def wrapped(self, tensors: Sequence[torch.Tensor], by: str) -> None:
        """Note that another tensor is made past the ops of one of some, which it is known by in memory that is f's."""
        self._flush()
        self.spots.enter(self.ledger.nodes, self.ledger.values)
        self.read([tensor for tensor in map(innermost, tensors) if not self.spots.has(tensor)], by)

    def replaced(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Note that a tensor is given the data of another."""
        super().replaced(tensor, other)
        self.wrapped([other], "torch.Tensor.data.__set__")

    def read_attribute(self, tensor: torch.Tensor, attribute: str) -> None:
        """Note that an attribute that tells of autograd is read."""
        if self._is_known(tensor):
            self.asked_history = True
        else:
            self.holdings.append(of_slot("a captured tensor", tensor, attribute))

    def read_layout(self, tensor: torch.Tensor) -> None:
        """Note that it is read how a tensor lies in memory; that of captured ones is fixed anyway."""
        self.asked_layout = self.asked_layout or self._is_known(tensor)

    def capture(self, tree: Any) -> None:
        """Make inputs of the tensors of a tree that are known from nowhere."""
        for leaf in tensors_in(tree):
            if not self._is_known(leaf) and not self._is_made_of_values(leaf):
                self.captured.add(id(leaf))
                self.ledger.add_input(leaf, active=False)
                if (root := root_of(leaf)) is not leaf and layout_of(root) == layout_of(leaf):
                    self.holdings.append(of_storage("a captured tensor", root))  # f may make the alias at every call

    def _is_made_of_values(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor reads the memory of what f made or computed, as a parameter that is made of that."""
        if storage_key(tensor) not in self._memory or id(root_of(tensor)) in self.captured:
            return False  # of what was captured, f may have captured views as well
        self._flush()
        self._storages.refresh((tensor,))
        return self.ledger.node_of(tensor) is not None or storage_key(tensor) in self._own

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is an input or was made by an op, or is a view that no op made of such a tensor."""
        if id(tensor) in self._made or id(tensor) in self.ledger.tracked:
            return True
        root = root_of(tensor)
        if id(root) in self.captured:  # of this, the function may have captured views as well
            return layout_of(tensor) == layout_of(root)
        return id(root) in self._made or id(root) in self.ledger.tracked


def record_for_replay(
    f: Callable[..., Any],
    active: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    roots: Iterable[Any],
    *,
    follow: bool = False,
) -> Replayable:
    """Call ``f(active, others)`` and record it.

    Args:
        f: Function of two lists of tensors.
        active: The tensors by which it is differentiated.
        others: Other tensors that it takes.
        roots: The objects from which it reaches all that it reads: the user's function, and arguments that are no
            tensors.
        follow: Whether autograd follows active where f sees them; if f asks, it is recorded again, with that.

    Returns:
        The recording of the first call that leaves what f looks at as it finds it. The graph's inputs are active,
        others and the captured tensors, in this order.

    Raises:
        MutationError: f writes to an input or to a captured tensor.
        UntracedError: f computes in a way that cannot be followed, sets the state of a random generator, or changes
            at every call what it looks at.
    """
    world, settling, draws_again = state(), Settling(roots), True
    while True:
        call = _call(f, active, others, settling.watch(), follow=follow, draws_again=draws_again)
        if call.tape.asked_history and not follow:
            follow = True
        elif draws_again and call.draws_only_seeded():
            draws_again = False
        else:
            _check_unseeded(call.graph, call.witness.seeded)
            captured = call.captured(len(active) + len(others))
            asked = (holding.place for holding in call.tape.holdings)
            held = settling.settled(call.witness, call.scratch, (*captured, *asked))
            if held is not None:
                return _replayable(call, world, captured, held)
        del call  # with all that it computed, before another is recorded


class _Call(NamedTuple):
    """A recorded call of a function.

    Attributes:
        tape: The tape.
        graph: Its graph.
        leaves: What the function returned, flattened.
        spec: Structure of that.
        witness: What watched the code that ran.
        scratch: What watched the attributes that it may bind.
        lines: Which of its lines computed which nodes, where that was noted.
    """

    tape: CapturingTape
    graph: Graph
    leaves: list[Any]
    spec: TreeSpec
    witness: Witness
    scratch: Scratch
    lines: Lines

    def captured(self, given: int) -> tuple[torch.Tensor, ...]:
        """Return the tensors that were captured, beside so many that were given."""
        return tuple(self.tape.ledger.values[number] for number in self.graph.inputs[given:])

    def draws_only_seeded(self) -> bool:
        """Tell whether it draws random numbers, all from generators that it seeds: the same ones at every call."""
        drawn = {*map(identity_of, _generators(self.graph.nodes))}
        seeded, restored = ({*map(identity_of, each)} for each in (self.witness.seeded, self.witness.restored))
        return bool(drawn) and drawn <= seeded - restored


def _call(
    f: Callable[..., Any],
    active: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    scratch: Scratch,
    *,
    follow: bool,
    draws_again: bool,
) -> _Call:
    """Call a function and record it, as if no other call of it had drawn random numbers before."""
    tape = CapturingTape()
    tape.is_followed, tape.ledger.draws_again = follow, draws_again
    witness = Witness(tape.wrapped)
    with torch.inference_mode(False), torch.enable_grad():
        given = [*map(lasting, (*active, *others))]
        inner, outer = given[: len(active)], given[len(active) :]
        aliases = [*(variable_of(tensor, follow=follow) for tensor in inner), *map(alias_of, outer)]
        for place, alias in enumerate(aliases):
            tape.ledger.add_input(alias, active=place < len(active))
        watching = Reads(tape.read, tape.read_attribute, tape.replaced, tape.read_layout)
        try:
            with (
                drawn_again(given, Generators) as tape.generators,
                noting_lines() as notes,
                tape,
                watching,
                uncached_autocast(),
                scratch,
                witness,
            ):
                seen = tape.seen(aliases, given)
                result = f(seen[: len(active)], seen[len(active) :])
        except Exception as error:
            check_asked(error, asked=tape.asked_history, follow=follow)
            raise
        with DisableTorchFunctionSubclass():
            tape.capture(result)
        leaves, spec = tree_flatten(result)
        graph = tape.graph([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        tape.check_hooks()
    _check_dense(graph, tape.ledger.values)
    lines = {} if notes is None else notes.of(tape.ledger.values)
    return _Call(tape, graph, leaves, spec, witness, scratch, lines)


def _replayable(call: _Call, world: tuple, captured: tuple[torch.Tensor, ...], held: Sequence[Holding]) -> Replayable:
    """Put together what is to be known of a call."""
    tape, graph = call.tape, call.graph
    pairs = zip(graph.nodes, tape.ledger.values, strict=True)
    values = [value.detach() if node.op is CONSTANT else value for node, value in pairs]  # f made what is constant
    histories = [of_slot("a captured tensor", each, "requires_grad") for each in captured if tape.asked_history]
    reliance = Reliance((*held, *tape.holdings, *tape.scripts, *histories), captured)
    facts = Facts(world, captured, tuple(map(form_of, captured)), reliance)
    return Replayable(
        Recording(graph, values, call.leaves, call.spec, None, lines=call.lines),
        tape.readings,
        facts,
        tape.asked_history,
        tape.asked_layout,
    )


def _check_dense(graph: Graph, values: Sequence[torch.Tensor]) -> None:
    """Refuse outputs, and operands of what is differentiated, that are no arrays; a constant may be made of one.

    Raises:
        UntracedError: There is one.
    """
    for number in {*graph.outputs, *(n for node in graph.nodes if node.active for n in node.operands)}:
        check_elements(values[number])


def _check_unseeded(graph: Graph, seeded: Sequence[torch.Generator]) -> None:
    """Refuse ops that draw numbers from a generator of which the function sets the state: a plan would not set it.

    Raises:
        UntracedError: There is one.
    """
    known = {*map(identity_of, seeded)}
    for node in graph.nodes:
        if known.intersection(map(identity_of, _generators([node]))):
            raise UntracedError(
                "hofunc: a plan of a function that sets the state of a random generator",
                got=f"{node.op}, which draws from it",
                expected="numbers as the generator has them when the plan is called",
                remedy="Set the seed before the plan is called, or draw the numbers outside and pass them to f.",
            )


def _generators(nodes: Iterable[Node]) -> Iterator[torch.Generator]:
    """Yield the generators from which nodes draw random numbers."""
    for node in nodes:
        if draws(node):
            yield generator_of(node.args, dict(node.kwargs))
