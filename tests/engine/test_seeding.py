"""Seeds and generator states (E17)."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from deepepochs import set_seed
from deepepochs.engine import load_rng_state, mix_seed, preserved_rng, rng_state


def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_the_same_seed_gives_the_same_numbers(seed):
    set_seed(seed)
    first = draw()
    set_seed(seed)
    assert draw() == first


def test_seeds_that_differ_in_their_high_bits_differ():
    set_seed(1)
    one = draw()
    set_seed(1 + 2**32)
    other = draw()
    assert one[0] != other[0]
    assert one[1] != other[1]  # torch's own generator on the CPU reads 32 bits of a seed


def test_small_seeds_equal_those_of_the_libraries_themselves():
    set_seed(7)
    ours = draw()
    random.seed(7), numpy.random.seed(7), torch.manual_seed(7)
    assert draw() == ours


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match=f"2\\*\\*64 - 1, got {seed}"):
        set_seed(seed)


def test_mixed_seeds_differ_and_never_overflow():
    seeds = {mix_seed(seed, epoch, rank) for seed in (0, 42, 2**64 - 1) for epoch in range(50) for rank in range(4)}
    assert len(seeds) == 3 * 50 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    for seed in seeds:
        torch.Generator().manual_seed(seed)


def test_states_travel_through_a_safe_file(tmp_path):
    set_seed(3)
    random.gauss(0, 1), numpy.random.randn()  # leaves a cached second number in each
    torch.save(rng_state(), tmp_path / "rng.pt")
    expected = [draw() for _ in range(3)], random.gauss(0, 1), numpy.random.randn()
    set_seed(4)
    load_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert ([draw() for _ in range(3)], random.gauss(0, 1), numpy.random.randn()) == expected


def test_a_preserved_block_leaves_the_generators_alone():
    set_seed(5)
    expected = draw()
    set_seed(5)
    with preserved_rng():
        draw()
    assert draw() == expected


class Augmented(Dataset):
    """Each sample is what the worker's three generators give."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(draw(), dtype=torch.float64)


def test_augmentation_in_workers_is_reproducible_and_differs_between_epochs():
    def two_epochs():
        set_seed(6)
        loader = DataLoader(Augmented(), batch_size=2, num_workers=1)
        return [torch.cat(list(loader)) for _ in range(2)]

    first, second = two_epochs()
    again = two_epochs()
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not (first == second).any()


@pytest.mark.parametrize("seed", [1.5, float("nan"), float("inf"), "7", None])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(TypeError, match="must be a whole number, got"):
        set_seed(seed)


def test_numpys_integers_are_seeds():
    set_seed(numpy.int64(7))
    ours = draw()
    set_seed(7)
    assert draw() == ours


def test_a_float_without_a_fraction_is_a_seed():
    """Old scripts have `set_seed(1.0)`."""
    drawn = []
    for seed in (1, 1.0, numpy.float64(1)):
        set_seed(seed)
        drawn.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1] == drawn[2]
    with pytest.raises(ValueError, match="within 0 and"):
        set_seed(-1.0)
