"""strict=True: an error where torch.autograd.functional has one, which names the output and the input."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import functional

import hofunc
from tests.cases import rand

Function = Callable[..., Any]

# Functions of two tensors, and what is independent of what at orders 1 and 2, if anything is.
FUNCTIONS: dict[str, tuple[Function, str | None, str | None]] = {
    "both": (lambda x, w: (x**2 * w**2).sum(), None, None),
    "a sum": (
        lambda x, w: (x**2 + w**2).sum(),
        None,
        r"the derivative of the output by args\[0\], which does not depend on args\[1\],",
    ),
    "linear": (
        lambda x, w: (x * w**2).sum(),
        None,
        r"the derivative of the output by args\[0\], which does not depend on args\[0\],",
    ),
    "one": (lambda x, w: (x**2).sum(), r"the output, which does not depend on args\[1\],", ""),
    "none": (lambda x, w: torch.ones(()), r"the output, which does not depend on args\[0\],", ""),
    "detached": (lambda x, w: (x.detach() * w**2).sum(), r"the output, which does not depend on args\[0\],", ""),
}


def _runs(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:  # that something is independent, or does not require gradients
        return False
    return True


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_strict_refuses_what_autograd_does(name: str, order: int, device: torch.device) -> None:
    f, *messages = FUNCTIONS[name]
    args = rand(device, 3, seed=0), rand(device, 3, seed=1)
    message = messages[0] if messages[0] else messages[order - 1]
    oracle: Any = functional.jacobian if order == 1 else functional.hessian
    assert _runs(lambda: oracle(f, args, strict=True)) == (message is None)
    hofunc.hod(f, order, (0, 1))(*args)
    transform = hofunc.hod(f, order, (0, 1), strict=True)
    for call in (transform, transform.plan, lambda *args: torch.func.vmap(transform)(*(x[None] for x in args))):
        if message is None:
            call(*args)
        else:
            with pytest.raises(hofunc.ArgumentError, match=f"hod: strict=True: got {message}"):
                call(*args)


@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_outputs_and_inputs_are_named_by_their_places(layout: str, device: torch.device) -> None:
    def f(n: int, p: dict[str, list[Tensor]], x: Tensor) -> dict[str, Any]:
        return {"a": n * x * p["w"][0] * p["w"][1], "b": [p["w"][0].exp()]}

    x = rand(device, 3)
    message = r"got the output\['b'\]\[0\], which does not depend on args\[1\]\['w'\]\[1\],"
    for transform in (hofunc.jacobian, hofunc.hessian, hofunc.derivatives):
        with pytest.raises(hofunc.ArgumentError, match=f"{transform.__name__}: strict=True: {message}"):
            transform(f, argnums=1, layout=layout, strict=True)(2, {"w": [x, x]}, x)


def test_what_has_no_elements_depends_on_nothing(device: torch.device) -> None:
    x = rand(device, 3)
    f = hofunc.derivatives(lambda x, empty: (x**3).sum() + empty.sum(), 2, (0, 1), strict=True)
    assert torch.equal(f(x, x[:0])[2][0][0], hofunc.hessian(lambda x: (x**3).sum())(x))
    assert hofunc.hessian(lambda x: x[:0], strict=True)(x).shape == (0, 3, 3)
