"""torch_geometric 2.8.1: its ready-made GCN with `torch.compile(model, dynamic=True)`, as it is advised to be
compiled for graphs of different sizes.

Every call brings another graph. Is the model one graph to Dynamo, whatever the number of nodes and edges?
"""

import torch
from torch_geometric.nn import GCN


def make():
    torch.manual_seed(0)
    model = GCN(in_channels=16, hidden_channels=32, num_layers=2, out_channels=4)
    return model.eval(), {"dynamic": True}


def calls():
    generator = torch.Generator().manual_seed(1)
    for nodes in range(40, 124, 7):
        features = torch.randn(nodes, 16, generator=generator)
        edges = torch.randint(0, nodes, (2, 4 * nodes), generator=generator)
        yield (features, edges), {}
