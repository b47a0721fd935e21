"""Writes through views of complex numbers: each function beside one of the same values that writes nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.errors import MutationError
from hofunc.graph.numerals import as_held, as_read, real_layout_of
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

Case = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def _of(x: Tensor, y: Tensor) -> Tensor:
    """Return a function of a complex tensor given by its parts, of which neither is left out."""
    return (x**2 - y**2) * x + y


def _z(x: Tensor) -> Tensor:
    return torch.complex(x * x, x.sin())


def _of_complex(z: Tensor) -> Tensor:
    return _of(z.real, z.imag)


def real_is_set(x: Tensor) -> Tensor:
    """Set the real part."""
    z = _z(x)
    z.real = x.exp()
    return _of_complex(z * z)


def imag_is_set(x: Tensor) -> Tensor:
    """Set the imaginary part."""
    z = _z(x) * 1j
    z.imag = x**3
    return _of_complex(z)


def real_is_added_to(x: Tensor) -> Tensor:
    """Add to the real part, which is known before."""
    z = _z(x)
    part = z.real
    before = part.sin()
    part.add_(x**2)
    return _of_complex(z) * before + part


def pairs_are_written(x: Tensor) -> Tensor:
    """Write to the tensor of both parts, twice, and read it as complex between."""
    z = _z(x)
    pairs = torch.view_as_real(z)
    pairs[..., 0] = x**3
    between = z.imag * z.real
    pairs[0] *= x[1]
    return _of_complex(z) + between + pairs[..., 1]


def pairs_are_complex(x: Tensor) -> Tensor:
    """Write to real memory through complex numbers."""
    y = torch.stack([x, x.sin()], -1)
    z = torch.view_as_complex(y)
    z *= 2j
    z[1] = z[0] * torch.complex(x[0], x[1])
    return _of(y[:, 0], y[:, 1])


def conjugate_is_written(x: Tensor) -> Tensor:
    """Write to the conjugate, and to the negative imaginary part that it has."""
    z = _z(x)
    conjugate = z.conj()
    conjugate[0] = torch.complex(x[0] ** 2, x[1])
    conjugate.imag[1:].mul_(x[0])
    return _of_complex(z) + conjugate.imag


def conjugate_is_scaled(x: Tensor) -> Tensor:
    """Write to all of the conjugate."""
    z = _z(x)
    conjugate = z.conj()
    conjugate.mul_(torch.complex(x, x))
    return _of_complex(z) + conjugate.imag


def every_other_row(x: Tensor) -> Tensor:
    """Write to strided parts."""
    z = _z(x.outer(x))
    z.t()[1].imag = x**2
    z[::2].real.mul_(x)
    return _of_complex(z).sum(0)


def zeros_are_filled(x: Tensor) -> Tensor:
    """Fill a constant by parts."""
    z = torch.zeros(3, dtype=torch.complex128, device=x.device)
    z.real = x
    z.imag[1:] = x[1:] ** 2
    return _of_complex(z)


def _only(x: Tensor, *places: int) -> Tensor:
    """Return ones at some places of a vector."""
    return torch.tensor([float(place in places) for place in range(len(x))], dtype=x.dtype, device=x.device)


def _pairs_are_written(x: Tensor) -> Tensor:
    scale = 1 + _only(x, 0) * (x[1] - 1)
    return _of(x**3 * scale, x.sin() * scale) + x.sin() * x**3 + x.sin() * scale


def _pairs_are_complex(x: Tensor) -> Tensor:
    real, imag = -2 * x.sin(), 2 * x
    second = (real[0] * x[0] - imag[0] * x[1], real[0] * x[1] + imag[0] * x[0])
    at = _only(x, 1)
    return _of(real * (1 - at) + at * second[0], imag * (1 - at) + at * second[1])


def _conjugate_is_written(x: Tensor) -> Tensor:
    first, others = _only(x, 0), _only(x, 1, 2)
    imag = -x[1] * first + others * x.sin() * x[0]
    return _of(x * x * others + first * x[0] ** 2, imag) - imag


def _conjugate_is_scaled(x: Tensor) -> Tensor:
    real, imag = x**3 + x.sin() * x, x**3 - x.sin() * x  # of conj(z) (x + i x)
    return _of(real, -imag) + imag


def _every_other_row(x: Tensor) -> Tensor:
    products = x.outer(x)
    column, rows = _only(x, 1)[None, :], _only(x, 0, 2)[:, None]
    imag = products.sin() * (1 - column) + column * (x**2)[:, None]
    return _of(products**2 * (1 + rows * (x[None, :] - 1)), imag).sum(0)


CASES: dict[str, Case] = {
    "real is set": (
        real_is_set,
        lambda x: _of(x.exp() ** 2 - x.sin() ** 2, 2 * x.exp() * x.sin()),
    ),
    "imag is set": (imag_is_set, lambda x: _of(-x.sin(), x**3)),
    "real is added to": (
        real_is_added_to,
        lambda x: _of(2 * x * x, x.sin()) * (x * x).sin() + 2 * x * x,
    ),
    "pairs are written": (pairs_are_written, _pairs_are_written),
    "pairs are complex": (pairs_are_complex, _pairs_are_complex),
    "conjugate is written": (conjugate_is_written, _conjugate_is_written),
    "conjugate is scaled": (conjugate_is_scaled, _conjugate_is_scaled),
    "every other row": (every_other_row, _every_other_row),
    "zeros are filled": (zeros_are_filled, lambda x: _of(x, x**2 * _only(x, 1, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_through_a_view_is_differentiated(name: str, device: torch.device) -> None:
    written, plain = CASES[name]
    x = rand(device, 3)
    assert relative_error(written(x), plain(x)) < 1e-14
    for order in (1, 2):
        expected = nested_reverse(plain, order)(x)
        assert relative_error(hofunc.hod(written, order)(x), expected) < 1e-12
    assert relative_error(hofunc.hod(written, 2).plan(3 * x)(x), expected) < 1e-12


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of conj_physical under vmap, from torch 2.15 on
@pytest.mark.parametrize("name", ["pairs are written", "conjugate is written", "conjugate is scaled"])
def test_so_it_is_under_vmap(name: str, device: torch.device) -> None:
    written, plain = CASES[name]
    x = rand(device, 2, 3)
    expected = torch.stack([nested_reverse(plain, 2)(row) for row in x])
    assert relative_error(torch.func.vmap(hofunc.hessian(written))(x), expected) < 1e-12


def test_such_a_write_where_autograd_does_not_look_has_no_derivative(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        z = _z(x)
        with torch.no_grad():
            z.real.mul_(3)
        return z.real * x

    x = rand(device, 3)
    assert relative_error(hofunc.jacobian(f)(x), torch.diag(2 * x * x + 3 * x * x)) < 1e-14


def test_autograd_goes_on_through_what_was_written(device: torch.device) -> None:
    x, w = rand(device, 3), rand(device, 3, seed=1).requires_grad_()

    def f(x: Tensor) -> Tensor:
        z = torch.complex(x, w * x)
        z.real = z.imag * x
        return (z * z).real.sum()

    (by_w,) = torch.autograd.grad(hofunc.hessian(f)(x).sum(), w)
    assert relative_error(by_w, 2 * w * (12 * x**2 - 2)) < 1e-13


def test_a_part_of_an_input_is_not_written_to(device: torch.device) -> None:
    def f(z: Tensor) -> Tensor:
        z.real.mul_(2)
        return z

    with pytest.raises(MutationError):
        hofunc.jacobian(f)(torch.complex(rand(device, 3), rand(device, 3)))


def test_ops_to_what_is_held_lead_back(device: torch.device) -> None:
    z = torch.complex(rand(device, 2, 3), rand(device, 2, 3, seed=1))
    for view in (z, z.conj(), z.imag, z.conj().imag, z.t()[1:].conj()):
        held = view.resolve_conj().resolve_neg()
        for op in as_held(view):
            held = op(held)
        layout = real_layout_of(view)
        assert torch.equal(held, torch.view_as_real(z).as_strided(*layout))
        for op in as_read(view):
            held = op(held)
        assert torch.equal(held.resolve_conj(), view)
