"""Manifolds and groups: geoopt, pypose."""

from collections.abc import Callable

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

geoopt = Library("geoopt")
pypose = Library("pypose")


@geoopt
def distance_in_the_poincare_ball() -> Case:
    from geoopt import PoincareBall

    ball, other = PoincareBall(), torch.tensor([0.1, 0.4])
    return lambda x: ball.dist(x, other), (torch.tensor([0.3, -0.2]),)


@geoopt
def exponential_in_the_poincare_ball() -> Case:
    from geoopt import PoincareBall

    ball, start = PoincareBall(), torch.tensor([0.1, 0.4])
    return lambda u: ball.expmap(start, u), (torch.tensor([0.3, -0.2]),)


@geoopt
def distance_on_the_sphere() -> Case:
    from geoopt import Sphere

    sphere, other = Sphere(), torch.tensor([0.0, 0.6, 0.8])
    return lambda x: sphere.dist(sphere.projx(x), other), (torch.tensor([0.5, -0.3, 0.7]),)


@geoopt
def distance_on_the_hyperboloid() -> Case:
    from geoopt import Lorentz

    manifold, other = Lorentz(), torch.tensor([1.1**0.5, 0.1, 0.3])
    return lambda x: manifold.dist(manifold.projx(x), other), (torch.tensor([1.2, 0.4, -0.5]),)


@geoopt
def distance_of_positive_matrices() -> Case:
    from geoopt import SymmetricPositiveDefinite

    manifold = SymmetricPositiveDefinite()
    other = torch.tensor([[2.0, 0.3], [0.3, 1.0]])
    return lambda x: manifold.dist(x @ x.mT + torch.eye(2), other), (torch.tensor([[1.0, 0.2], [-0.4, 0.7]]),)


# Their backward passes detach what they depend on, so that second derivatives are lost; the forwards are ops.
_FORWARDS = {
    "functions": [f"pypose.lietensor.operation.{name}" for name in ("so3_Exp", "SO3_Log", "SO3_Act", "SO3_Mul")]
}


def _of_vectors(f: Callable[[Tensor], Tensor]) -> Case:
    return f, (torch.tensor([0.3, -0.2, 0.4]),)


@pypose
def exponential_of_rotations() -> Case:
    import pypose as library

    return _of_vectors(lambda x: library.so3(x).Exp().tensor())


@pypose.entry(options=_FORWARDS)
def rotated_point() -> Case:
    import pypose as library

    point = torch.tensor([1.0, 2.0, -1.0])
    return _of_vectors(lambda x: library.so3(x).Exp() @ point)


@pypose.entry(options=_FORWARDS)
def logarithm_of_a_product() -> Case:
    import pypose as library

    other = library.so3(torch.tensor([0.1, 0.5, -0.3])).Exp()
    return _of_vectors(lambda x: (library.so3(x).Exp() * other).Log().tensor())


@pypose.entry(options=_FORWARDS)
def rotation_matrix() -> Case:
    import pypose as library

    return _of_vectors(lambda x: library.so3(x).Exp().matrix())
