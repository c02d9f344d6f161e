"""The engine alone: a reinforcement-learning loop, where there is no loader at all.

An agent walks on a line of 11 fields and is rewarded at its right end (REINFORCE, Williams 1992). An episode is a
micro-batch whose weight is its number of moves; `last` says where the window of eight episodes ends.
"""

import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import set_seed
from deepepochs.engine import Engine

FIELDS, MOVES = 11, 40


def episode(policy, device):
    """Plays one; returns the moves' log-probabilities (moves,) and the discounted returns (moves,)."""
    place, chosen = FIELDS // 2, []
    while 0 < place < FIELDS - 1 and len(chosen) < MOVES:
        field = F.one_hot(torch.tensor(place, device=device), FIELDS).float()
        moves = torch.distributions.Categorical(logits=policy(field))
        move = moves.sample()
        chosen.append(moves.log_prob(move))
        place += 1 if int(move) else -1
    reward = 1.0 if place == FIELDS - 1 else -1.0
    returns = torch.tensor([reward * 0.95**left for left in reversed(range(len(chosen)))], device=device)
    return torch.stack(chosen), returns


if __name__ == "__main__":
    set_seed(1)
    policy = nn.Linear(FIELDS, 2)
    opt = torch.optim.Adam(policy.parameters(), lr=0.1)
    with Engine(device="cpu", gradient_accumulation_steps=8) as engine:
        policy, opt = engine.prepare(policy, opt)
        for update in range(20):
            wins = 0
            for index in range(8):
                log_probabilities, returns = episode(policy, engine.device)
                with engine.accumulate(policy, n_samples=len(returns), last=index == 7):
                    engine.backward(-(log_probabilities * returns).mean())
                    engine.step(opt)
                wins += bool(returns[-1] > 0)
            if update % 5 == 4:
                print(f"update {update + 1}: {wins} of 8 episodes won")
