"""The engine alone: a GAN, whose two models and optimizers take turns in a loop of your own."""

import torch
from data import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from deepepochs import set_seed
from deepepochs.engine import Engine


def bce(logits, is_real):
    """The discriminator's loss for images that are all real, or all generated."""
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_real)))


if __name__ == "__main__":
    set_seed(1)
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())
    discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    g_opt = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.99))
    d_opt = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    loader = DataLoader(digits()[0], batch_size=64, shuffle=True, drop_last=True)

    with Engine(seed=1) as engine:
        generator, discriminator, g_opt, d_opt, loader = engine.prepare(generator, discriminator, g_opt, d_opt, loader)
        for epoch in range(5):
            losses = torch.zeros(2, device=engine.device)
            for images, _ in loader:
                real = images.flatten(1)
                with engine.accumulate():  # one micro-batch: both models' updates
                    fake = generator(torch.randn(len(real), 16, device=engine.device))
                    with engine.autocast():
                        d_loss = bce(discriminator(real), True) + bce(discriminator(fake.detach()), False)
                    engine.backward(d_loss)
                    engine.step(d_opt)
                    with engine.autocast():
                        g_loss = bce(discriminator(fake), True)
                    engine.backward(g_loss)
                    engine.step(g_opt)
                    d_opt.zero_grad()  # the generator's loss left gradients there
                losses += torch.stack([d_loss.detach(), g_loss.detach()])
            d_mean, g_mean = (losses / len(loader)).tolist()  # the only wait for the device
            print(f"epoch {epoch + 1}: discriminator {d_mean:.3f}, generator {g_mean:.3f}")
