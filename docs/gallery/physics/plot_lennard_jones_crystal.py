r"""
Anharmonic force constants of a crystal
=======================================

Second derivatives of the energy of a crystal are springs, and give its phonons; third derivatives say how these springs
change as it is strained, and so why it expands when heated. This page computes both for argon, in the model of
Lennard-Jones, sparse as they are, and mode Grüneisen parameters from them, without a difference of anything.
"""

# %%
# The pair
# --------
#
# In units of the depth :math:`\varepsilon` and the place :math:`r_0` of its minimum, the potential of a pair is
#
# .. math:: V(r) = \varepsilon \left[ (r_0 / r)^{12} - 2 (r_0 / r)^6 \right],
#
# so that :math:`V'' r_0^2 = (156 - 84)\,\varepsilon = 72\,\varepsilon` and
# :math:`V''' r_0^3 = (-2184 + 672)\,\varepsilon = -1512\,\varepsilon`.

import math

import matplotlib.pyplot as plt
import torch

import hofunc

torch.set_default_dtype(torch.float64)


def pair(squared: torch.Tensor) -> torch.Tensor:
    """Return the energy of pairs, given their squared distances."""
    attraction = squared**-3
    return attraction**2 - 2 * attraction


of_pair = torch.stack(hofunc.derivatives(lambda r: pair(r**2), order=3)(torch.tensor(1.0)))
print("V, V', V'', V''':", of_pair.tolist())

# %%
# The crystal
# -----------
#
# Atoms lie on a face-centred cubic lattice, in a cube with periodic boundaries. The energy takes their displacements
# and reads them at the two ends of every pair within reach. Its derivatives of order 2 and 3,
#
# .. math:: \Phi_{ia,jb} = \frac{\partial^2 E}{\partial u_{ia} \partial u_{jb}}, \qquad
#           \Phi_{ia,jb,kc} = \frac{\partial^3 E}{\partial u_{ia} \partial u_{jb} \partial u_{kc}},
#
# are zero unless all atoms in them belong to one pair. With ``layout="compact"`` they are kept as one block a pair.

CELLS = 3  # cubes of four atoms along each edge
CORNERS = torch.tensor([[0.0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]) / 2
sites = (torch.cartesian_prod(*[torch.arange(CELLS)] * 3)[:, None] + CORNERS).reshape(-1, 3)  # in edges of a cube
offsets = sites - sites[:, None]
offsets = offsets - CELLS * (offsets / CELLS).round()  # from each atom to the nearest image of each other


def force_constants(edge: float, reach: float) -> tuple[hofunc.Derivative, hofunc.Derivative]:
    """Return those of order 2 and 3, given the edge of a cube and how far pairs reach, in edges."""
    i, j = torch.nonzero(torch.triu(offsets.norm(dim=-1) < reach, 1)).unbind(-1)
    bonds = edge * offsets[i, j]

    def energy(displacement: torch.Tensor) -> torch.Tensor:
        return pair((bonds + displacement[j] - displacement[i]).square().sum(-1)).sum()

    return hofunc.derivatives(energy, order=3, layout="compact")(torch.zeros(len(sites), 3))[2:]


nearest = math.sqrt(2), 0.8  # the edge at which nearest neighbours are in their minimum, and their reach
second, third = force_constants(*nearest)
print(second.pattern)
print(f"order 3: {third.nbytes / 1e6:.1f} MB, in place of {8 * math.prod(third.shape) / 1e6:.0f}")

# %%
# A translation of the whole crystal changes nothing. So both are zero when contracted with one: the acoustic sum rules
# :math:`\sum_j \Phi_{ia,jb} = 0` and :math:`\sum_k \Phi_{ia,jb,kc} = 0`. A Derivative is contracted as it is.

translation = torch.tensor([0.3, -1.0, 0.5]).expand(len(sites), 3)
sum_rules = [each.contract(translation).to_sparse().values().abs().max() for each in (second, third)]
sparse = third.to_sparse()
swapped = sparse.permute(2, 3, 4, 5, 0, 1)
asymmetry = (sparse - swapped).coalesce().values().abs().max()
print(f"acoustic sum rules: {sum_rules[0]:.0e}, {sum_rules[1]:.0e}; asymmetry: {asymmetry:.0e}")

# %%
# Phonons and their Grüneisen parameters
# --------------------------------------
#
# The frequencies at a wave vector :math:`q` are roots of the eigenvalues of
# :math:`D(q) = \sum_j \Phi_{0,j}\, e^{i q \cdot R_j} / m`. When the crystal is stretched by a factor
# :math:`1 + \eta`, all atoms are displaced by :math:`\eta R_k`, whence
#
# .. math:: \frac{\partial D}{\partial \eta} = \frac{1}{m} \sum_{jk} \Phi_{0,j,k} R_k \, e^{i q \cdot R_j}, \qquad
#           \gamma = -\frac{\partial \ln \omega}{\partial \ln V}
#                  = -\frac{1}{6 \omega^2}\, e^\dagger \frac{\partial D}{\partial \eta}\, e
#
# with the eigenvector :math:`e` (Wallace, *Thermodynamics of Crystals*, 1972). One row of each tensor is enough, since
# all atoms are alike.


def phonons(
    second: hofunc.Derivative, third: hofunc.Derivative, edge: float, waves: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frequencies in roots of eps / (m r0^2), and Grüneisen parameters, for waves in units of 2 pi / edge."""
    stretched = third.contract(edge * offsets[0]).to_sparse()[0].to_dense()  # (3, atoms, 3)
    phases = torch.exp(2j * math.pi * (waves @ offsets[0].T))  # (waves, atoms)
    dynamical, change = (
        torch.einsum("ajb, qj -> qab", each.to(phases.dtype), phases)
        for each in (second.to_sparse()[0].to_dense(), stretched)
    )
    squared, modes = torch.linalg.eigh(dynamical)
    slopes = torch.einsum("qan, qab, qbn -> qn", modes.conj(), change, modes).real
    return squared.clamp(min=0).sqrt(), -slopes / (6 * squared)


# %%
# With nearest neighbours only, waves along :math:`[1 0 0]` can be solved by hand, with :math:`K = V''`:
#
# .. math:: m \omega_L^2 = 8 K \sin^2 (q a / 4), \quad m \omega_T^2 = 4 K \sin^2 (q a / 4),
#
# .. math:: \gamma_L = -\frac{1}{6}\left(\frac{V''' r_0}{V''} + 1\right) = \frac{10}{3}, \quad
#           \gamma_T = -\frac{1}{6}\left(\frac{V''' r_0}{V''} + 3\right) = 3,
#
# whatever :math:`q` is. With three shells of neighbours the edge has to be found first, at which the pressure vanishes:
# Newton's method on the energy as a function of the edge.

lengths = offsets[0].norm(dim=-1)
lengths = lengths[(lengths > 0) & (lengths < 1.3)]
curve = hofunc.jit(hofunc.derivatives(lambda edge: pair((edge * lengths) ** 2).sum(), order=2))
edge = torch.tensor(math.sqrt(2))
for _ in range(6):
    _, force, stiffness = curve(edge)
    edge = edge - force / stiffness
three_shells = edge.item(), 1.3

# %%
# The units are those of argon (Rahman 1964: a depth of 120 K, r0 of 3.82 Å), whose frequencies reach 2 THz.

KELVIN, ATOMIC_MASS = 1.380649e-23, 1.66053907e-27
TERAHERTZ = math.sqrt(120 * KELVIN / (39.948 * ATOMIC_MASS)) / (2 ** (1 / 6) * 3.4e-10) / (2 * math.pi) / 1e12

way = torch.linspace(0.02, 1, 60)[:, None]
legs = [way * torch.tensor([1.0, 0, 0]), way.flip(0) * torch.tensor([1.0, 1, 0]), way * torch.tensor([0.5, 0.5, 0.5])]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for (cell, reach), colour, name in ((nearest, "C1", "nearest neighbours"), (three_shells, "C0", "three shells")):
    constants = force_constants(cell, reach)
    ticks = [0.0]
    for waves in legs:
        frequency, grueneisen = phonons(*constants, cell, waves)
        along = ticks[-1] + (waves - waves[0]).norm(dim=-1)
        left.plot(along, TERAHERTZ * frequency, colour, lw=1.5)
        right.plot(along, grueneisen, ".", color=colour, ms=3)
        ticks.append(along[-1].item())
    left.plot([], [], colour, label=name)
    right.plot([], [], ".", color=colour, label=name)
right.hlines([3, 10 / 3], 0, 1, "black", linestyles="dotted", label="3 and 10/3, by hand")
for axes in (left, right):
    axes.set_xticks(ticks, ["Γ", "X", "Γ", "L"])
    axes.set_xlim(0, ticks[-1])
    axes.grid(axis="x", color="0.8")
    axes.set_xlabel("wave vector")
    axes.legend(loc="upper center" if axes is left else "lower left")
left.set_ylabel("frequency in THz")
left.set_ylim(0, 2.4)
left.set_title("phonons, by order 2")
right.set_ylabel("mode Grüneisen parameter")
right.set_title("their change with volume, by order 3")

# %%
# What is asserted: the pair and the sum rules; the closed forms along :math:`[1 0 0]`; and, for three shells at waves
# of no symmetry, that :math:`\gamma` is the difference of logarithms of frequencies of two crystals of slightly
# different volumes, to the error of that difference. Programs for lattice dynamics find force constants by differences
# of forces or by fits to them; ``verification/test_gallery_peers.py`` compares those above with phono3py's (Togo,
# Chaput, Tadano and Tanaka 2023), which agree to 8e-7 of the largest, and Grüneisen parameters to 2e-6, and with
# hiPhive's (Eriksson, Fransson and Erhart 2019), which agree to 1e-7.

torch.testing.assert_close(of_pair, torch.tensor([-1.0, 0, 72, -1512]), rtol=1e-13, atol=1e-13)
assert max(*sum_rules, asymmetry) < 1e-10
assert third.symmetric_in == ((0, 1, 2),)

waves = way * torch.tensor([1.0, 0, 0])
frequency, grueneisen = phonons(second, third, nearest[0], waves)
sine = torch.sin(math.pi * waves[:, 0] / 2).abs()[:, None]
torch.testing.assert_close(frequency, sine * torch.tensor([4, 4, 8]).mul(72).sqrt(), rtol=1e-9, atol=0)
torch.testing.assert_close(grueneisen, torch.tensor([3, 3, 10 / 3]).expand(60, 3), rtol=1e-9, atol=0)

waves, step = torch.tensor([[0.31, 0.17, 0.05], [0.7, 0.42, 0.11]]), 1e-4
_, grueneisen = phonons(*force_constants(*three_shells), three_shells[0], waves)
wide, narrow = (
    phonons(*force_constants(factor * three_shells[0], 1.3), factor * three_shells[0], waves)[0].log()
    for factor in (1 + step, 1 - step)
)
by_difference = -(wide - narrow) / (3 * math.log((1 + step) / (1 - step)))
torch.testing.assert_close(grueneisen, by_difference, rtol=1e-6, atol=0)
