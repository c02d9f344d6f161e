"""The engine alone: a small character GPT on the Zen of Python and on the documentation that ships with torch.

Sequences have different lengths, so the mean loss of a micro-batch is a mean over its tokens: `n_samples` is the number
of tokens, and four micro-batches make exactly the update of all their tokens together.
"""

import codecs
import contextlib
import io

import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import set_seed
from deepepochs.engine import Engine


def corpus():
    """Lines of text."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    texts = [codecs.decode(this.s, "rot13"), *[str(getattr(F, name).__doc__) for name in sorted(vars(F))[:60]]]
    return [line.strip() for text in texts for line in text.splitlines() if len(line.strip()) > 8]


class GPT(nn.Module):
    """A decoder-only transformer (Radford et al. 2019) of two layers."""

    def __init__(self, vocabulary, width=64, length=128):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.05)

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf"), device=ids.device), diagonal=1)
        hidden = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        return self.head(self.layers(hidden, mask=mask))


def batches_of(lines, letters, size, generator):
    """Batches of lines, padded with 0 to the longest of each."""
    order = torch.randperm(len(lines), generator=generator).tolist()
    for start in range(0, len(order), size):
        chosen = [lines[index][:127] for index in order[start : start + size]]
        ids = torch.zeros(len(chosen), max(map(len, chosen)) + 1, dtype=torch.long)
        for row, line in enumerate(chosen):
            ids[row, 1 : len(line) + 1] = torch.tensor([letters[letter] for letter in line])
        yield ids


if __name__ == "__main__":
    set_seed(1)
    lines = corpus()
    letters = {letter: index + 1 for index, letter in enumerate(sorted(set("".join(lines))))}
    model = GPT(len(letters) + 1)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)

    with Engine(gradient_accumulation_steps=4, precision="bf16") as engine:
        model, opt = engine.prepare(model, opt)
        for epoch in range(2):
            total, count = torch.zeros((), device=engine.device), 0
            loader = engine.prepare_loader(list(batches_of(lines, letters, 8, generator)))
            for ids in loader:
                inputs, targets = ids[:, :-1], ids[:, 1:]
                tokens = int((targets > 0).sum())
                with engine.accumulate(model, n_samples=tokens):
                    with engine.autocast():
                        logits = model(inputs)
                        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
                    engine.backward(loss)
                    engine.clip_grad_norm(opt, 1.0)
                    engine.step(opt)
                total += loss.detach().float() * tokens
                count += tokens
            print(f"epoch {epoch + 1}: {total.item() / count:.3f} nats a character")
