"""Dictionary batches: the model gets the fields as keyword arguments, labels included, and returns its loss."""

from data import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, default_collate

from deepepochs import TrainerBase, metrics, set_seed


class Classifier(nn.Module):
    """Returns a dictionary with `loss`, as models of other libraries do."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pixels, labels=None):
        logits = self.net(pixels)
        return {"logits": logits, "loss": None if labels is None else F.cross_entropy(logits, labels)}


class DictTrainer(TrainerBase):
    """The default steps train such a model; this one also hands logits and labels over to the metrics."""

    def step(self, batch_x, batch_y, **step_args):
        out = self.model(**batch_x)
        loss = self.loss(out, None, do_metric=False)
        self.do_metric(loss.detach(), out["logits"], batch_x["labels"])


def collate(samples):
    """A list of (image, label) as a dictionary."""
    pixels, labels = default_collate(samples)
    return {"pixels": pixels, "labels": labels}


if __name__ == "__main__":
    set_seed(1)
    train, val, test = [
        DataLoader(part, batch_size=32, shuffle=part_index == 0, collate_fn=collate)
        for part_index, part in enumerate(digits())
    ]
    with DictTrainer(Classifier(), epochs=4, metrics=[metrics.accuracy]) as trainer:
        trainer.fit(train, val)
        print(trainer.test(test))
