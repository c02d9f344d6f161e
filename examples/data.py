"""The examples' data: handwritten digits from scikit-learn, or MNIST where torchvision and its files are there."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def digits():
    """scikit-learn's 1797 handwritten digits.

    Returns:
        Training, validation and test sets of (image, label): (1, 8, 8) float within [0, 1], and 0 to 9.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order[:1197], order[1197:1497], order[1497:]
    return [TensorDataset(images[part], labels[part]) for part in parts]


def mnist(root="./data"):
    """MNIST through torchvision, from files that are there already.

    Returns:
        Training, validation and test sets of (image, label): (1, 28, 28) float within [0, 1], and 0 to 9.

    Raises:
        RuntimeError: the files are not under `root`.
    """
    from torch.utils.data import Subset
    from torchvision import datasets, transforms

    train = datasets.MNIST(root, train=True, transform=transforms.ToTensor(), download=False)
    test = datasets.MNIST(root, train=False, transform=transforms.ToTensor(), download=False)
    return [Subset(train, range(55000)), Subset(train, range(55000, 60000)), test]


def loaders(batch_size=32, dataset=digits):
    """Training, validation and test loaders.

    Args:
        batch_size: samples in a batch.
        dataset: `digits` or `mnist`.
    """
    train, val, test = dataset()
    return (
        DataLoader(train, batch_size=batch_size, shuffle=True),
        DataLoader(val, batch_size=batch_size),
        DataLoader(test, batch_size=batch_size),
    )
