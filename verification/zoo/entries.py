"""All entries of the zoo, in the order of the table."""

from verification.zoo import atoms, flows, gaussian_processes, images, language, manifolds, ordinary, physics
from verification.zoo.entry import Entry, Library

LIBRARIES: tuple[Library, ...] = (
    gaussian_processes.gpytorch,
    gaussian_processes.linear_operator,
    gaussian_processes.botorch,
    ordinary.torchdiffeq,
    language.transformers,
    images.timm,
    atoms.torch_geometric,
    atoms.e3nn,
    atoms.mace,
    atoms.schnetpack,
    flows.nflows,
    flows.zuko,
    flows.normflows,
    flows.pyro,
    physics.deepxde,
    physics.neuraloperator,
    images.kornia,
    manifolds.geoopt,
    manifolds.pypose,
    images.monai,
    images.torchmetrics,
    physics.opacus,
)

ENTRIES: dict[str, Entry] = {entry.key: entry for library in LIBRARIES for entry in library.entries}
