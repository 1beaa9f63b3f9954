# %% [markdown]
# # Bring a PyTorch network
#
# You have an `nn.Module` that returns scores of classes. Methods and their arithmetic stay as they are; PyTorch
# computes the scores and the gradients of your network.

# %%
import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(
    nn.Linear(64, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 10)
)

# %% [markdown]
# Layer norm needs nothing else. Batch norm needs a policy for its running statistics, which no gradient trains:
# [Bring your own network](../networks.md). The data are the digits of scikit-learn, as NumPy arrays by client. Tensors of your
# own become arrays by `.numpy()`.

# %%
from fedspam import Evaluation, datasets, fedavg, simulate
from fedspam.datasets import FederatedData
from fedspam.models import from_torch

digits = datasets.read_digits()
owners = datasets.dirichlet(
    digits["label"], clients=8, alpha=0.5
)  # clients have different mixes of digits
train, test = FederatedData.by(digits, owners).hold_out_examples(0.25)

model = from_torch(network)
clients = train.population(model.loss, batch=32)
judge = Evaluation.of(test, model.correct)
method = fedavg(4, local_steps=5, local_rate=0.2)
run = simulate(
    method, clients, model.init(0), rounds=20, key=0, probe=judge, every=2
)
print(
    f"accuracy {run.probes['accuracy'][-1]:.2f}, {run.rows['bytes_up'].sum() / 1e6:.1f} MB sent by clients"
)

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots()
axis.plot(range(0, 21, 2), run.probes["accuracy"])
axis.set(xlabel="rounds", ylabel="accuracy on held-out digits")

# %% [markdown]
# Parameters keep PyTorch's names, so the result goes back into your network.

# %%
import numpy as np

network.load_state_dict(
    {name: torch.tensor(np.asarray(value)) for name, value in run.params.items()}
)
rows = test.examples
with torch.no_grad():
    guessed = (
        network(torch.tensor(np.asarray(rows["features"], np.float32)))
        .argmax(dim=1)
        .numpy()
    )
print(f"in PyTorch: accuracy {(guessed == np.asarray(rows['label'])).mean():.2f}")

# %% [markdown]
# Next: [from simulation to Flower](flower.md), or sites that train in [PyTorch without JAX](../light.md).
