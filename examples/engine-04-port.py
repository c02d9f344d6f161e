"""The engine alone: a plain PyTorch script, ported. Lines that changed are marked; the README shows them as a diff."""

import torch
from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs.engine import Engine, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, _, test_dl = loaders()
    model = mlp()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)

    with Engine() as engine:  # +
        model, opt, train_dl = engine.prepare(model, opt, train_dl)  # +
        test_dl = engine.prepare_loader(test_dl, train=False)  # +
        for epoch in range(4):
            model.train()
            for x, y in train_dl:
                with engine.accumulate(model, n_samples=len(x)):  # +
                    loss = F.cross_entropy(model(x), y)
                    engine.backward(loss)  # was: loss.backward()
                    engine.step(opt)  # was: opt.step(); opt.zero_grad()
            model.eval()
            with torch.no_grad():
                found = [(model(x).argmax(1) == y) for x, y in test_dl]
            hits = engine.gather(torch.cat(found))  # + all ranks' samples, each once
            if engine.is_main:  # +
                print(f"epoch {epoch + 1}: test accuracy {hits.float().mean():.3f}")
