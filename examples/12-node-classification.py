"""Node classification with a graph network: which side the members of Zachary's karate club took.

The whole graph is one batch; a mask says which nodes are trained and which are tested.
"""

import networkx as nx
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import TrainerBase, ValuePatch, set_seed


class GraphNet(nn.Module):
    """Two graph convolutions (Kipf and Welling 2017, https://arxiv.org/abs/1609.02907)."""

    def __init__(self, nodes, hidden=16, classes=2):
        super().__init__()
        self.first = nn.Linear(nodes, hidden)
        self.second = nn.Linear(hidden, classes)

    def forward(self, adjacency, features):
        hidden = F.relu(adjacency @ self.first(features))
        return adjacency @ self.second(hidden)


class NodeTrainer(TrainerBase):
    """A step for all stages: the loss and the accuracy of the masked nodes only."""

    def step(self, batch_x, batch_y, **step_args):
        adjacency, features, mask = batch_x
        out = self.model(adjacency, features)
        self.loss(out[mask], batch_y[mask])
        hits = (out[mask].argmax(1) == batch_y[mask]).float().mean()
        return {"accuracy": ValuePatch(int(mask.sum())).load(hits)}


def karate_club():
    """The normalised adjacency matrix (34, 34), features (34, 34) and sides (34,)."""
    graph = nx.karate_club_graph()
    adjacency = torch.tensor(nx.to_numpy_array(graph, weight=None), dtype=torch.float32) + torch.eye(len(graph))
    scale = adjacency.sum(1).rsqrt()
    sides = torch.tensor([int(graph.nodes[node]["club"] != "Mr. Hi") for node in graph])
    return scale[:, None] * adjacency * scale, torch.eye(len(graph)), sides


if __name__ == "__main__":
    set_seed(1)
    adjacency, features, sides = karate_club()
    known = torch.zeros(34, dtype=torch.bool)
    known[[0, 1, 2, 33, 32, 31]] = True  # a few members of each side
    model = GraphNet(34)
    opt = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-3)
    with NodeTrainer(model, F.cross_entropy, opt, epochs=60) as trainer:
        trainer.fit([(adjacency, features, known, sides)], batch_size=int(known.sum()))
        print(trainer.test([(adjacency, features, ~known, sides)], batch_size=int((~known).sum())))
