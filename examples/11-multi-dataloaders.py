"""Several loaders: two training tasks, two validation tasks with metrics of their own, two test tasks."""

from data import loaders
from models import mlp
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from deepepochs import EpochTask, Trainer, metrics, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    half = len(train_dl.dataset) // 2
    train_tasks = [
        EpochTask(DataLoader(Subset(train_dl.dataset, range(half)), batch_size=32, shuffle=True)),
        EpochTask(DataLoader(Subset(train_dl.dataset, range(half, 2 * half)), batch_size=64, shuffle=True)),
    ]
    val_tasks = [EpochTask(val_dl, metrics=[metrics.recall]), EpochTask(test_dl, metrics=[metrics.recall])]
    with Trainer(mlp(), F.cross_entropy, epochs=3, metrics=[metrics.accuracy]) as trainer:
        progress = trainer.fit(train_tasks=train_tasks, val_tasks=val_tasks)
        results = trainer.test(val_dl, tasks=[EpochTask(test_dl)])
    print(sorted(progress["val"]))  # the second task's metrics end in /1
    print(results)
