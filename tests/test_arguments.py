"""Every check of what a transform is called with: its message, and that it leaves nothing behind."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_structure

import hofunc
from hofunc.arguments import split
from hofunc.plan import packing
from tests.cases import rand
from verification.oracles import nested_reverse

TRANSFORMS = [hofunc.hod, hofunc.derivatives]


def square(*args: Any, **_: Any) -> Tensor:
    """Sum the squares of the first argument."""
    return (args[0] * args[0]).sum()


@pytest.fixture
def x(device: torch.device) -> Iterator[Tensor]:
    """Return an input, and check at the end that nothing of it or around it has changed."""
    x = rand(device, 3)
    before, graded = x.clone(), torch.is_grad_enabled()
    yield x
    assert torch.equal(x, before)
    assert x.grad_fn is None
    assert not x.requires_grad
    assert torch.is_grad_enabled() == graded
    assert not _get_current_dispatch_mode_stack()
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._functorch.peek_interpreter_stack() is None


def assert_refuses(call: Callable[[], Any], what: str, got: str, expected: str, remedy: str) -> None:
    """Check all parts of a message."""
    with pytest.raises(hofunc.ArgumentError) as caught:
        call()
    place = rf" \(called at {re.escape(__file__.rsplit('/', 1)[-1])}:\d+\)\. "
    assert re.fullmatch(
        f"{re.escape(f'{what}: got {got}, expected {expected}')}{place}{re.escape(remedy)}", str(caught.value)
    ), str(caught.value)


# What does not depend on the call is refused when the transform is made.


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("order", [0, -1, True, 2.0, "2", None])
def test_order(transform: Callable[..., Any], order: Any) -> None:
    assert_refuses(
        lambda: transform(square, order),
        f"{transform.__name__}: order",
        repr(order),
        "an int of at least 1",
        "The value itself is f(x), or derivatives()[0].",
    )


@pytest.mark.parametrize(("f", "got"), [(3, "int"), (None, "NoneType"), (torch.ones(2), "Tensor")])
def test_f_that_is_not_a_function(f: Any, got: str) -> None:
    for transform in TRANSFORMS:
        assert_refuses(
            lambda transform=transform: transform(f),  # type: ignore[misc]
            f"{transform.__name__}: f",
            got,
            "a function of tensors",
            "Pass the function itself, not its result.",
        )


@pytest.mark.parametrize("argnums", [(), [], "0", 1.0, None, (0, 1.0), (0, None), (True,), {0}])
def test_argnums_that_are_not_numbers(argnums: Any) -> None:
    assert_refuses(
        lambda: hofunc.hod(square, 2, argnums),
        "hod: argnums",
        repr(argnums),
        "an int or a tuple of ints",
        "Names go into wrt='0'." if argnums == "0" else "Name positional arguments by number.",
    )


@pytest.mark.parametrize("argnums", [True, False])
def test_argnums_that_is_a_truth_value(argnums: bool) -> None:
    with pytest.raises(hofunc.ArgumentError, match=rf"hod: argnums: got {argnums}, expected an int or a tuple of ints"):
        hofunc.hod(square, 2, argnums)


@pytest.mark.parametrize("layout", ["sparse", None, "DENSE", 0])
def test_layout(layout: Any) -> None:
    assert_refuses(
        lambda: hofunc.hod(square, layout=layout),
        "hod: layout",
        repr(layout),
        "one of ('dense', 'compact')",
        "Use 'dense' for plain tensors.",
    )


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("strategy", ["backward", None, "AUTO", 0, ("forward",), ["forward"]])
def test_strategy(transform: Callable[..., Any], strategy: Any) -> None:
    assert_refuses(
        lambda: transform(square, strategy=strategy),
        f"{transform.__name__}: strategy",
        repr(strategy),
        "one of ('auto', 'reverse', 'forward', 'mixed')",
        "Leave it at 'auto' if in doubt.",
    )


@pytest.mark.parametrize("name", ["jacobian", "hessian"])
def test_named_orders_check_too_and_name_themselves(name: str) -> None:
    transform = getattr(hofunc, name)
    for option, value in (("layout", "sparse"), ("argnums", ()), ("strategy", "sideways"), ("chunk_size", 0)):
        with pytest.raises(hofunc.ArgumentError, match=f"^{name}: {option}: "):
            transform(square, **{option: value})
    with pytest.raises(hofunc.ArgumentError, match=rf"^{name}: an input to differentiate by, at args\[0\]: "):
        transform(square)(torch.tensor(1))


# What depends on the arguments.


@pytest.mark.parametrize(
    ("argnums", "got"),
    [
        (2, "2 for 2 positional arguments"),
        (-3, "-3 for 2 positional arguments"),
        ((0, 5), "(0, 5) for 2 positional arguments"),
    ],
)
def test_argnums_out_of_range(argnums: Any, got: str, x: Tensor) -> None:
    assert_refuses(
        lambda: hofunc.hod(square, 2, argnums)(x, x),
        "hod: argnums",
        got,
        "numbers from -2 to 1",
        "Arguments are counted from 0, from behind if below it, and only those that are passed by position.",
    )


@pytest.mark.parametrize("argnums", [(0, 0), (1, -1), (-2, 1, 0), [1, 1]])
def test_argnums_that_name_an_argument_twice(argnums: Any, x: Tensor) -> None:
    assert_refuses(
        lambda: hofunc.hod(square, 2, argnums)(x, x),
        "hod: argnums",
        repr(tuple(argnums)),
        "every argument once",
        "Leave the second one out.",
    )


def test_no_positional_argument(x: Tensor) -> None:
    assert_refuses(
        lambda: hofunc.derivatives(square)(x=x),
        "derivatives: argnums",
        "no positional argument",
        "one to differentiate by",
        "Pass it by position.",
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_inputs_of_integers(dtype: torch.dtype, x: Tensor) -> None:
    assert_refuses(
        lambda: hofunc.hod(square)(x.to(dtype)),
        "hod: an input to differentiate by, at args[0]",
        f"dtype {dtype}",
        "a floating-point or complex dtype",
        "Convert it with .double().",
    )


@pytest.mark.parametrize(
    ("leaf", "got", "remedy"),
    [
        (2, "int", "float"),
        (True, "bool", "tensor"),
        ("a", "str", "tensor"),
        (None, "NoneType", "tensor"),
    ],
)
def test_inputs_that_are_not_tensors(leaf: Any, got: str, remedy: str, x: Tensor) -> None:
    for argument, where in ((leaf, ""), ({"a": x, "b": [leaf]}, "['b'][0]"), ((x, leaf), "[1]")):
        assert_refuses(
            lambda argument=argument: hofunc.hod(square, argnums=(0, 1))(x, argument),  # type: ignore[misc]
            f"hod: an input to differentiate by, at args[1]{where}",
            got,
            "a tensor, a float or complex number, or a pytree of these",
            f"Turn it into a {remedy}, or leave it out of argnums.",
        )


def test_inputs_of_a_dataclass_that_is_no_pytree(x: Tensor) -> None:
    @dataclass
    class Point:
        position: Tensor

    assert_refuses(
        lambda: hofunc.hod(lambda a: square(a["at"].position))({"at": Point(x)}),
        "hod: an input to differentiate by, at args[0]['at']",
        "Point",
        "a tensor, a float or complex number, or a pytree of these",
        "Register it as a pytree: torch.export.register_dataclass(Point).",
    )


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
@pytest.mark.parametrize("under", [lambda g: g, torch.func.vmap], ids=["plain", "vmap"])
def test_more_directions_than_a_strategy_takes(
    strategy: str, under: Callable[..., Any], x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * x).sum() * x.sum()

    monkeypatch.setattr(packing, "MAX_ENTRIES", 5)
    rows = x[None].expand(2, 3)
    assert_refuses(
        lambda: under(hofunc.hod(f, 3, strategy=strategy))(rows if under is torch.func.vmap else x),
        "hofunc: strategy",
        "3 directions to differentiate an input in, at order 2",
        "so few that they make at most 5 products",
        "Use strategy='reverse', which takes any number, or 'auto', which leaves out what does not apply.",
    )
    for fitting in ("auto", "reverse"):
        torch.testing.assert_close(hofunc.hod(f, 3, strategy=fitting)(x), nested_reverse(f, 3)(x))


def test_only_what_is_differentiated_by_is_checked(x: Tensor) -> None:
    got = hofunc.hod(lambda x, *_, **__: square(x), 2)(x, 3, "name", x.int(), None, key={"a": 1})
    assert torch.equal(got, 2 * torch.eye(3, dtype=x.dtype, device=x.device))


def test_f_is_not_called_on_bad_arguments(x: Tensor) -> None:
    calls: list[Tensor] = []
    with pytest.raises(hofunc.ArgumentError):
        hofunc.hod(calls.append, 2, 1)(x)
    with pytest.raises(hofunc.ArgumentError):
        hofunc.hod(calls.append, 2)(x.int())
    assert not calls


# What f returns.


@pytest.mark.parametrize(
    ("convert", "where", "got"),
    [
        (Tensor.int, "", "dtype torch.int32"),
        (lambda y: y > 0, "", "dtype torch.bool"),
        (Tensor.item, "", "float"),
        (lambda _: None, "", "NoneType"),
        (lambda y: (y, "name"), ", at [1]", "str"),
        (lambda y: {"a": y, "b": [2]}, ", at ['b'][0]", "int"),
    ],
)
def test_outputs(convert: Callable[[Tensor], Any], where: str, got: str, x: Tensor) -> None:
    for transform in TRANSFORMS:
        assert_refuses(
            lambda transform=transform: transform(lambda x: convert(square(x)))(x),  # type: ignore[misc]
            f"{transform.__name__}: an output of f{where}",
            got,
            "a floating-point or complex tensor",
            "Return only what is to be differentiated; other results go into aux, with has_aux=True.",
        )


@pytest.mark.parametrize(
    ("result", "got"), [(lambda y: y, "Tensor"), (lambda y: [y, y], "list"), (lambda y: (y, y, y), "tuple")]
)
def test_has_aux_without_a_pair(result: Callable[[Tensor], Any], got: str, x: Tensor) -> None:
    assert_refuses(
        lambda: hofunc.hod(lambda x: result(square(x)), has_aux=True)(x),
        "hod: the result of f",
        got,
        "a pair (output, aux)",
        "Return a pair, or drop has_aux.",
    )


@pytest.mark.parametrize("under", [lambda g: g, torch.func.vmap], ids=["plain", "vmap"])
def test_nothing_is_left_behind_by_an_error_in_f(under: Callable[..., Any], x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        raise KeyError(x.sin().shape)

    with torch.no_grad():
        with pytest.raises(KeyError):
            under(hofunc.hod(f))(x)
        assert not torch.is_grad_enabled()


# Floats to differentiate by.


def _powers(a: Any, b: dict[str, Any]) -> dict[str, Tensor]:
    return {"y": a**3 * b["c"][0] ** 2 * b["d"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_tensors_of_the_default_dtype(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(hofunc.hod(lambda x: x**3, 2)(2.0), torch.tensor(12.0, dtype=dtype))
        value, slope, curvature = hofunc.derivatives(torch.exp, 2)(0.0)
        assert [tensor.dtype for tensor in (value, slope, curvature)] == [dtype] * 3
    finally:
        torch.set_default_dtype(before)


def test_floats_are_inputs_beside_tensors_and_inside_pytrees() -> None:
    d = torch.tensor(5.0)
    got = hofunc.hessian(_powers, argnums=(0, 1))(2.0, {"c": [3.0], "d": d})["y"]
    assert got[0][0] == 6 * 2 * 3**2 * 5
    assert got[0][1]["c"][0] == 3 * 2**2 * 2 * 3 * 5
    assert got[1]["d"][0] == 3 * 2**2 * 3**2
    assert got[1]["c"][0][1]["d"] == 2**3 * 2 * 3
    assert hofunc.hod(hofunc.jacobian(lambda x: x**4), 1)(2.0) == 48
    assert torch.equal(
        torch.func.vmap(lambda y: hofunc.hessian(lambda x: x**2 * y)(2.0))(torch.ones(3)), 2 * torch.ones(3)
    )
    assert hofunc.hodcheck(lambda x, y: x.sin() * y, (torch.tensor(2.0, dtype=torch.float64), 3.0))


@pytest.mark.parametrize("kind", [bool, int, float, complex, str])
def test_a_float_is_no_tensor_where_nothing_is_differentiated(kind: type) -> None:
    seen: list[Any] = []

    def f(x: Tensor, n: Any) -> Tensor:
        seen.append(n)
        return x

    hofunc.jacobian(f)(1.0, kind(2.0))
    assert seen == [kind(2.0)]


def test_a_plan_takes_floats_where_it_differentiates() -> None:
    plan = hofunc.hod(_powers, 1, argnums=(0, 1)).plan(2.0, {"c": [3.0], "d": torch.tensor(5.0)})
    for a, c, d in ((2.0, 3.0, 5.0), (torch.tensor(4.0), 3.0, torch.tensor(1.0)), (4.0, torch.tensor(2.0), 1.0)):
        got = plan(a, {"c": [c], "d": d})["y"]
        expected = (3 * a**2 * c**2 * d, a**3 * 2 * c * d, a**3 * c**2)
        assert (got[0], got[1]["c"][0], got[1]["d"]) == tuple(map(torch.as_tensor, expected))
    assert_refuses(
        lambda: plan(2, {"c": [3.0], "d": 1.0}),
        "hod: args[0] of a plan",
        "2",
        "a tensor, as planned",
        "Make another plan for such arguments, or call the transform itself.",
    )


# The separation of arguments.


def test_split_takes_leaves_out_and_joined_puts_them_back(x: Tensor) -> None:
    first, second = {"b": x, "a": [x + 1]}, x + 2
    args = (1.5, first, "name", second)
    parts = split("hod", args, {"key": 2}, (-1, 1))
    assert parts.argnums == (3, 1)
    assert [leaf.sum().item() for leaf in parts.leaves] == [(x + n).sum().item() for n in (2, 0, 1)]
    assert parts.spec == tree_structure((second, first))
    assert parts.rest == ((1.5, None, "name", None), {"key": 2})
    joined, kwargs = parts.joined([leaf * 2 for leaf in parts.leaves], parts.rest)
    assert torch.equal(joined[3], second * 2)
    assert torch.equal(joined[1]["a"][0], (x + 1) * 2)
    assert joined[0::2] == [1.5, "name"]
    assert kwargs == {"key": 2}


def test_split_by_one_number_has_the_structure_of_the_argument(x: Tensor) -> None:
    assert split("hod", (x, [x]), {}, 1).spec == tree_structure([x])
    assert split("hod", (x, [x]), {}, (1,)).spec == tree_structure(([x],))
