"""The force constants of the gallery's crystal are those of phono3py and hiPhive, where these are installed.

Claim: the tensors of order 2 and 3 that docs/gallery/physics/plot_lennard_jones_crystal.py computes are those that
phono3py (Togo, Chaput, Tadano and Tanaka, 2023) finds by differences of forces, and hiPhive (Eriksson, Fransson and
Erhart, 2019) by a fit to forces; and its Grüneisen parameters those of phono3py.
They are in no extra: ``pip install phono3py hiphive``; it was run with 4.10 and 1.5.
Source: forces of the pair potential in numpy, which share no code with hofunc.
Falsifier: an entry that differs by more than the error of the other's method.
Tolerance: 2e-6 of the largest entry, of which 8e-7 were measured for phono3py and 1e-7 for hiPhive. The error of
differences is of the first or second order in displacements of 1e-4 of the distance of neighbours; a fit leaves out
order 4, which opposite displacements keep from order 3.
"""

import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "gallery" / "physics" / "plot_lennard_jones_crystal.py"
DISTANCE = 1e-4
EDGE = 2**0.5


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """Return what the page defines."""
    dtype = torch.get_default_dtype()
    try:
        yield runpy.run_path(str(PAGE))
    finally:
        plt.close("all")
        torch.set_default_dtype(dtype)


def forces(positions: np.ndarray, cells: int) -> np.ndarray:
    """Return the forces on atoms in a periodic cube, of pairs of nearest neighbours."""
    apart = positions - positions[:, None]
    apart -= cells * EDGE * np.round(apart / (cells * EDGE))
    squared = (apart**2).sum(-1)
    is_near = (squared > 0) & (squared < 1.6)
    inverse = np.where(is_near, 1 / np.where(is_near, squared, 1), 0)
    return ((12 * (inverse**4 - inverse**7))[..., None] * apart).sum(1)


def matched(positions: np.ndarray, sites: np.ndarray, cells: int) -> np.ndarray:
    """Return where in sites each of the positions is found."""
    apart = positions[:, None] - sites
    distances = np.linalg.norm(apart - cells * EDGE * np.round(apart / (cells * EDGE)), axis=-1)
    assert distances.min(1).max() < 1e-6
    return distances.argmin(1)


def of_page(page: dict[str, Any]) -> list[np.ndarray]:
    """Return the rows of the first atom of both tensors."""
    return [page[name].to_sparse()[0].to_dense().numpy() for name in ("second", "third")]


def test_phono3py(page: dict[str, Any]) -> None:
    phono3py = pytest.importorskip("phono3py")
    atoms = pytest.importorskip("phonopy.structure.atoms")
    phonon3 = pytest.importorskip("phono3py.phonon3.gruneisen")
    cells, places = page["CELLS"], page["CORNERS"].numpy()
    cube = atoms.PhonopyAtoms(symbols=["Ar"] * 4, cell=EDGE * np.eye(3), scaled_positions=places, masses=[1.0] * 4)
    peer = phono3py.Phono3py(cube, supercell_matrix=cells * np.eye(3, dtype=int), primitive_matrix="F")
    peer.generate_displacements(distance=DISTANCE)
    peer.forces = [forces(each.positions, cells) for each in peer.supercells_with_displacements]
    peer.produce_fc3(is_compact_fc=False)
    order = matched(EDGE * page["sites"].numpy(), peer.supercell.positions, cells)
    second, third = of_page(page)
    of_peer = peer.fc2[order[0]][order].transpose(1, 0, 2)
    np.testing.assert_allclose(of_peer, second, rtol=0, atol=2e-6 * 72)
    of_peer = peer.fc3[order[0]][order][:, order].transpose(2, 0, 3, 1, 4)
    np.testing.assert_allclose(of_peer, third, rtol=0, atol=2e-6 * 1512)

    waves = np.array([[0.31, 0.17, 0.05], [0.7, 0.42, 0.11]])
    _, grueneisen = page["phonons"](page["second"], page["third"], EDGE, torch.from_numpy(waves))
    with warnings.catch_warnings(action="ignore"):  # of numpy's shapes
        modes = phonon3.Gruneisen(peer.fc2, peer.fc3, peer.supercell, peer.primitive)
        modes.set_qpoints(waves @ (peer.primitive.cell.T / EDGE))
        modes.run()
    of_peer = np.trace(modes.gruneisen_parameters, axis1=-2, axis2=-1) / 3  # by strain along each axis
    np.testing.assert_allclose(of_peer, grueneisen.numpy(), rtol=2e-6, atol=0)


def test_hiphive(page: dict[str, Any]) -> None:
    hiphive = pytest.importorskip("hiphive")
    ase = pytest.importorskip("ase")
    cells = page["CELLS"]
    cube = ase.Atoms("Ar4", cell=EDGE * np.eye(3), scaled_positions=page["CORNERS"].numpy(), pbc=True)
    ideal = cube.repeat(cells)
    container = hiphive.StructureContainer(hiphive.ClusterSpace(cube, [1.2, 1.2], acoustic_sum_rules=True))
    generator = np.random.default_rng(0)
    drawn = DISTANCE / 10 * generator.standard_normal((2, *ideal.positions.shape))
    for displacement in (*drawn, *-drawn):
        moved = ideal.copy()
        moved.set_array("forces", forces(ideal.positions + displacement, cells))
        moved.set_array("displacements", displacement)
        container.add_structure(moved)
    parameters = np.linalg.lstsq(*container.get_fit_data())[0]
    found = hiphive.ForceConstantPotential(container.cluster_space, parameters).get_force_constants(ideal)
    order = matched(EDGE * page["sites"].numpy(), ideal.positions, cells)
    second, third = of_page(page)
    of_peer = found.get_fc_array(2)[order[0]][order].transpose(1, 0, 2)
    np.testing.assert_allclose(of_peer, second, rtol=0, atol=2e-6 * 72)
    of_peer = found.get_fc_array(3)[order[0]][order][:, order].transpose(2, 0, 3, 1, 4)
    np.testing.assert_allclose(of_peer, third, rtol=0, atol=2e-6 * 1512)
