"""Atoms and graphs: torch_geometric, e3nn, mace-torch, schnetpack."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

torch_geometric = Library("torch_geometric")
e3nn = Library("e3nn")
mace = Library("mace-torch")
schnetpack = Library("schnetpack")

_WATER = ((0.0, 0.0, 0.1), (0.76, 0.1, 0.6), (-0.7, 0.0, 0.55))
_EDGES = ((0, 0, 1, 1, 2, 2), (1, 2, 0, 2, 0, 1))


def _convolution(name: str, *sizes: Any, **options: Any) -> Case:
    """Return what a layer over a graph makes of its nodes."""
    from torch_geometric import nn

    layer = getattr(nn, name)(*sizes, **options)
    edges = torch.tensor(_EDGES)
    return lambda x: layer(x, edges).tanh(), (torch.randn(3, 2),)


@torch_geometric
def gcn() -> Case:
    return _convolution("GCNConv", 2, 2)


@torch_geometric
def graph_attention() -> Case:
    return _convolution("GATv2Conv", 2, 2, heads=1)


@torch_geometric
def transformer_convolution() -> Case:
    return _convolution("TransformerConv", 2, 2, heads=1)


@torch_geometric
def edge_convolution() -> Case:
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.SiLU(), torch.nn.Linear(3, 2))
    return _convolution("EdgeConv", network, aggr="mean")


@torch_geometric
def schnet_energy() -> Case:
    from torch_geometric.nn import SchNet
    from torch_geometric.nn.models.schnet import RadiusInteractionGraph

    class Complete(RadiusInteractionGraph):
        """All pairs, which do not need an extension of torch to be found."""

        def forward(self, pos: Tensor, batch: Tensor) -> Any:  # noqa: ARG002
            edges = torch.tensor(_EDGES)
            return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)

    model = SchNet(4, 4, 1, 5, cutoff=5.0, interaction_graph=Complete())
    numbers = torch.tensor([8, 1, 1])
    return lambda x: model(numbers, x), (torch.tensor(_WATER),)


@e3nn
def spherical_harmonics() -> Case:
    from e3nn import o3

    return lambda x: o3.spherical_harmonics([0, 1, 2], x, normalize=True), (torch.tensor([_WATER[1]]),)


@e3nn
def tensor_product() -> Case:
    from e3nn import o3

    product = o3.FullyConnectedTensorProduct("1x0e+1x1o", "1x1o", "1x0e+1x1o")
    other = torch.randn(1, 3)
    return lambda x: product(x, other).tanh(), (torch.randn(1, 4),)


@e3nn
def gate() -> Case:
    from e3nn.nn import Gate

    layer = Gate("1x0e", [torch.tanh], "1x0e", [torch.sigmoid], "1x1o")
    return layer, (torch.randn(1, 5),)


def _mace(compute_force: bool) -> Case:
    import numpy as np
    from e3nn import o3
    from mace import data, modules, tools

    table = tools.AtomicNumberTable([1, 8])
    model = modules.MACE(
        r_max=3.0,
        num_bessel=2,
        num_polynomial_cutoff=3,
        max_ell=1,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        num_interactions=1,
        num_elements=2,
        hidden_irreps=o3.Irreps("2x0e"),
        MLP_irreps=o3.Irreps("2x0e"),
        atomic_energies=np.zeros(2),
        avg_num_neighbors=2,
        atomic_numbers=table.zs,
        correlation=2,
        gate=torch.nn.functional.silu,
    )
    water = data.Configuration(
        atomic_numbers=np.array([8, 1, 1]), positions=np.array(_WATER), properties={}, property_weights={}
    )
    batch = next(
        iter(
            tools.torch_geometric.dataloader.DataLoader(
                [data.AtomicData.from_config(water, z_table=table, cutoff=3.0)], batch_size=1
            )
        )
    ).to_dict()

    def f(positions: Tensor) -> Tensor:
        result = model({**batch, "positions": positions}, compute_force=compute_force, training=True)
        return result["forces" if compute_force else "energy"]

    return f, (torch.tensor(_WATER),)


@mace
def energy() -> Case:
    return _mace(compute_force=False)


@mace
def forces() -> Case:
    return _mace(compute_force=True)


@contextmanager
def _single() -> Iterator[None]:
    """Have layers made in single precision, as those of schnetpack can only be."""
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float64)


def _schnet(part: str) -> Case:
    import schnetpack as library
    from schnetpack import properties

    with _single():
        representation = library.representation.SchNet(
            n_atom_basis=4,
            n_interactions=1,
            radial_basis=library.nn.GaussianRBF(n_rbf=4, cutoff=5.0),
            cutoff_fn=library.nn.CosineCutoff(5.0),
        )
        outputs = [library.atomistic.Atomwise(n_in=4, output_key="energy")]
        if part == "forces":
            outputs.append(library.atomistic.Forces(energy_key="energy", force_key="forces"))
        model = library.model.NeuralNetworkPotential(
            representation, input_modules=[library.atomistic.PairwiseDistances()], output_modules=outputs
        ).double()
    senders, receivers = torch.tensor(_EDGES)
    fixed = {
        properties.Z: torch.tensor([8, 1, 1]),
        properties.idx_i: senders,
        properties.idx_j: receivers,
        properties.offsets: torch.zeros(6, 3),
        properties.idx_m: torch.zeros(3, dtype=torch.long),
        properties.n_atoms: torch.tensor([3]),
        properties.cell: torch.zeros(1, 3, 3),
        properties.pbc: torch.zeros(3, dtype=torch.bool),
    }
    return lambda x: model({**fixed, properties.R: x})[part], (torch.tensor(_WATER),)


@schnetpack
def schnet_of_atoms() -> Case:
    return _schnet("energy")


@schnetpack
def schnet_forces() -> Case:
    return _schnet("forces")


@schnetpack
def painn() -> Case:
    import schnetpack as library

    with _single():
        layer = library.representation.PaiNN(
            n_atom_basis=2,
            n_interactions=1,
            radial_basis=library.nn.GaussianRBF(n_rbf=3, cutoff=5.0),
            cutoff_fn=library.nn.CosineCutoff(5.0),
        ).double()
    senders, receivers = torch.tensor(_EDGES)
    numbers = torch.tensor([8, 1, 1])

    def f(x: Tensor) -> Tensor:
        inputs = {"_atomic_numbers": numbers, "_Rij": x[receivers] - x[senders], "_idx_i": senders, "_idx_j": receivers}
        return layer(inputs)["scalar_representation"]

    return f, (torch.tensor(_WATER),)
