"""Going along a route: calls of ops are compared with those that are expected, and made without looking further."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hofunc.graph.identity import PLAIN, root_of, storage_key
from hofunc.graph.node import CONSTANT, exact
from hofunc.graph.route import New, Route, Seen, Several, Step, Unheld, held, unheld
from hofunc.graph.storage import copied
from hofunc.graph.values import Values
from hofunc.internals import backward_pass, count_function_modes, is_autograd_view, is_forward_mode_on

MISSED: Any = object()  # what is returned where a call is another one than expected

Made = tuple[Any, tuple, dict, Any]


class Walk:
    """A recording that goes along a route.

    Args:
        route: The route.
        inputs: The inputs, as the function sees them.

    Attributes:
        calls: What was called so far.
        is_lost: Whether another call was made, which was as expected but for what it returned.
        values: The values of the nodes, once it went along all of the route.
    """

    __slots__ = (
        "_backward_pass",
        "_end",
        "_forward_mode",
        "_numbers",
        "_own",
        "_saved",
        "_seen",
        "_steps",
        "calls",
        "is_lost",
        "route",
        "values",
    )

    def __init__(self, route: Route, inputs: Sequence[torch.Tensor]):
        self.route, self._steps, self._end = route, route.steps, len(route.steps)
        self.calls: list[Made] = []
        self.is_lost = False
        self._seen: list[Any] = [*inputs]
        self._numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
        self._saved: dict[int, torch.Tensor] = {}
        self._own: list[int] = []  # the keys of the memory that is written to, as far as it came along
        self._forward_mode, self._backward_pass = is_forward_mode_on(), backward_pass()
        self.values: Values | None = None

    def along(self, op: Any, args: tuple, kwargs: dict | None) -> Any:  # noqa: C901, PLR0911, PLR0912 - for speed
        """Make a call if it is the one that is expected next, and return what it returns; else MISSED."""
        calls, steps = self.calls, self._steps
        place = len(calls)
        if place == self._end:
            return MISSED
        step, seen = steps[place], self._seen
        if op is not step.op or len(args) != step.arity:
            return MISSED
        for at, number in step.known:
            if seen[number] is not args[at] and not self._is(number, args[at]):
                return MISSED
        for at, other, kind in step.others:
            if type(args[at]) is not kind or args[at] != other:
                return MISSED
        for at, expected in step.given:
            if not self._is_given(expected, args[at]):
                return MISSED
        if (step.rest or kwargs or step.names) and not self._takes(step, args, kwargs or {}):
            return MISSED
        if (
            torch.is_grad_enabled() is not step.has_grad
            or count_function_modes()
            or is_forward_mode_on() != self._forward_mode
            or backward_pass() != self._backward_pass
        ):
            return MISSED
        for number, tensor in step.saved:
            self._saved[number] = copied(self._tensor(tensor))
        if step.reshapes is not None:
            seen[step.reshapes] = args[0].detach()
        try:
            out = step.runs(*args, **kwargs) if kwargs else step.runs(*args)
        except TypeError:  # it may take fewer forms of arguments than the op does
            out = op(*args, **(kwargs or {}))
        except Exception:
            self._end = place  # which the function may catch, and none was expected
            raise
        if step.returned is not None and out is seen[step.returned]:
            calls.append((op, args, kwargs or {}, out))
            return out
        if step.is_new and type(out) is torch.Tensor:
            is_same = out.shape == step.shape and out.stride() == step.stride and out.dtype is step.dtype
            self.is_lost = not is_same or self._knows(out)
            if not self.is_lost:
                self._numbers[id(out)] = len(seen)
                seen.append(out)
                calls.append((op, args, kwargs or {}, out))
            return out
        return self._made(step, args, kwargs or {}, out)

    def _made(self, step: Step, args: tuple, kwargs: dict, out: Any) -> Any:
        """Note a call that returned another thing than one tensor that may be held."""
        if step.reshapes is not None:
            del self._numbers[id(out)]
        self.is_lost = not self._is_met(step.result, out, is_given=False)
        if not self.is_lost:
            kept = unheld(out) if step.makes else out
            if kept is not out:
                self._seen[-1] = kept
            self.calls.append((step.op, args, kwargs, kept))
        return out

    def _tensor(self, number: int) -> torch.Tensor:
        tensor: torch.Tensor = held(self._seen[number])
        return tensor

    def _knows(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor came along, and not only one that is gone and had the same id."""
        number = self._numbers.get(id(tensor))
        return number is not None and (self._seen[number] is tensor or self._is(number, tensor))

    def _is(self, number: int, arg: Any) -> bool:
        """Tell whether something is a tensor that nobody held as it came along."""
        held = self._seen[number]
        if type(held) is not Unheld or held.known() is not arg:
            return False
        self._seen[number] = arg
        return True

    def _takes(self, step: Step, args: tuple, kwargs: dict) -> bool:
        """Tell whether the rest of the arguments of a call is what is expected."""
        if kwargs.keys() != step.names:
            return False
        return all(
            self._is_met(expected, args[at] if type(at) is int else kwargs[at], is_given=True)
            for at, expected in step.rest
        )

    def _is_met(self, expected: Any, value: Any, *, is_given: bool) -> bool:
        """Tell whether something is what is expected, and number the tensors that are new."""
        kind = type(expected)
        if kind is Seen:
            return self._seen[expected.number] is value or self._is(expected.number, value)
        if kind is New:
            return self._is_given(expected, value) if is_given else self._is_made(expected, value)
        if kind is Several:
            if type(value) is not expected.kind or len(value) != len(expected.items):
                return False
            for each, item in zip(expected.items, value):  # noqa: B905, SIM110 - for speed
                if not self._is_met(each, item, is_given=is_given):
                    return False
            return True
        return (
            type(value) is expected.kind
            and (exact(value) if expected.kind in (float, complex) else value) == expected.value
        )

    def _is_given(self, expected: New, value: Any) -> bool:
        """Tell whether a tensor that came along from outside is as expected, and related to no other."""
        if type(value) not in PLAIN or self._knows(value) or not expected.form.is_of(value):
            return False
        if (is_autograd_view(value) and self._knows(root_of(value))) or self._is_own(value):
            return False
        self._number(value)
        return True

    def _is_made(self, expected: New, value: Any) -> bool:
        """Tell whether a tensor that a call returned is new, and as expected."""
        if type(value) not in PLAIN or self._knows(value) or not expected.form.is_made(value):
            return False
        self._number(value)
        return True

    def _number(self, tensor: torch.Tensor) -> None:
        self._numbers[id(tensor)] = len(self._seen)
        self._seen.append(tensor)

    def _is_own(self, value: torch.Tensor) -> bool:
        """Tell whether a tensor reads memory to which the function writes: it may be a parameter that is made of it."""
        written, own, known = self.route.written, self._own, len(self._seen)
        while len(own) < len(written) and written[len(own)] < known:
            own.append(storage_key(self._tensor(written[len(own)])))
        return storage_key(value) in own

    def arrives(self, outputs: Sequence[torch.Tensor]) -> bool:
        """Tell whether all calls were made and these tensors are what was returned, and keep the values if so."""
        route = self.route
        if not len(self.calls) == self._end == len(route.steps) or len(outputs) != len(route.outputs):
            return False
        for number, output in zip(route.outputs, outputs, strict=True):
            if self._seen[number] is not output and not self._is(number, output):
                return False
        if [number for number, tensor in enumerate(self._seen) if _is_followed(tensor)] != route.followed:
            return False
        held = {number: self._tensor(tensor) for number, tensor in route.ends}
        self.values = Values(route.graph, held | self._saved, len(route.graph.nodes), route.keep)
        return True

    def followed(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that autograd follows, but for those that the function captured."""
        return (self._tensor(number) for number in self.route.followed if number not in self.route.given)

    def known(self, count: int) -> "Values":
        """Return the values of the first so many nodes, after the calls that were made."""
        made, found = len(self.calls), dict(self._saved)
        for number in range(count):
            if number not in found:
                for span in self.route.spans[number]:
                    if span.first <= made <= span.last:
                        found[number] = self._tensor(span.tensor)
                        break
        return Values(self.route.graph, found, count, self.route.keep)

    def with_histories(self) -> "Values":
        """Return the values of all nodes with the histories that the graph says, see NOTE [routes and histories]."""
        route, end, found = self.route, len(self.calls), {}
        for node, spans in zip(route.graph.nodes, route.spans, strict=True):
            number = node.number
            if node.op is CONSTANT and number in self._saved:
                found[number] = self._saved[number]
            elif number not in route.hidden:
                span = next((span for span in spans if span.is_value and span.first <= end <= span.last), None)
                if span is not None:
                    found[number] = self._tensor(span.tensor)
        return Values(route.graph, found, len(route.graph.nodes))

    def again(self) -> Iterator[tuple[Made, bool]]:
        """Yield all calls that were made, and whether gradients were on.

        Before, tensors are brought back to the shapes that they had at first.

        Calls that change a shape are to be made again.
        """
        pairs = [*zip(self._steps, self.calls)]  # noqa: B905 - not all of the steps
        for step, (_, args, *_) in reversed(pairs):
            if step.reshapes is not None:
                before = self._tensor(step.reshapes)
                args[0].as_strided_(before.size(), before.stride(), before.storage_offset())
        for step, (op, args, kwargs, out) in pairs:
            yield (op, args, kwargs, held(out)), step.has_grad

    def storages(self) -> set[int]:
        """Return the keys of the memory of all that came along."""
        return {storage_key(held(tensor)) for tensor in self._seen}


def _is_followed(tensor: Any) -> bool:
    """Tell whether autograd follows what was kept of a tensor; what is gone it does not."""
    known = tensor.known() if type(tensor) is Unheld else tensor
    return known is not None and known.requires_grad
