"""PyTorch modules run in JAX: the same scores, gradients and statistics, and what is refused."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.models.torch_graph import NotCompiledError, TorchNetwork, with_group_norm

torch = pytest.importorskip("torch", reason="pip install '.[torch]'")
parity, zoo = (importlib.import_module(f"torch_{name}") for name in ("parity", "zoo"))

QUICK = ("MobileNet", "LSTM", "1-D", "MLP")


@pytest.mark.x64
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in zoo.ZOO])
def test_a_module_computes_what_pytorch_computes(name):
    found = parity.differences(name, train=True)
    assert max(found.values()) < 1e-5, found


@pytest.mark.x64
@pytest.mark.parametrize("name", ["1-D", pytest.param("ResNet-20", marks=pytest.mark.slow)])
def test_a_module_in_evaluation_uses_its_running_statistics(name):
    found = parity.differences(name, train=False)
    assert max(found.values()) < 1e-5
    assert found["statistics"] == 0


def rows(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def single(function):
    class One(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return One()


F = torch.nn.functional
FUNCTIONS = {
    "gather": lambda x: x.gather(1, x.argsort(1)),
    "index": lambda x: x[:, [2, 0, 1]] + x[torch.tensor([0, 0, 1, 2])],
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, (x > 0).long(), x),
    "topk": lambda x: x.topk(2, dim=1).values,
    "extremes": lambda x: x.max(dim=1).values + x.min(dim=0).values.sum() + torch.maximum(x, -x).amax(1),
    "moments": lambda x: x.var(1) + x.std(0).sum() + torch.var_mean(x)[0] + x.norm(dim=1) + x.prod(1),
    "cumsum": lambda x: x.cumsum(1).flip(1).roll(1, 1).tril(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x) @ x,
    "where": lambda x: torch.where(x > 0, x, 2.0).clamp(-0.5, 0.5) + x.masked_fill(x > 1, 0),
    "pads": lambda x: F.pad(F.pad(x[None], (1, 2), mode="reflect"), (0, -1), value=3.0)[0],
    "powers": lambda x: x**2 + x.abs() ** 0.5 + torch.lerp(x, 2 * x, 0.3) + torch.div(x, 0.3, rounding_mode="floor"),
    "shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 1, 3), 2).flatten(1),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2.0).flatten(1),
    "resize": lambda x: F.interpolate(x[None, None], size=(5, 7), mode="bilinear", align_corners=True).flatten(1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x[None, None], (3, 2)).flatten(1),
    "ceil": lambda x: F.max_pool2d(x[None, None], 2, ceil_mode=True).flatten(1),
    "means": lambda x: F.avg_pool2d(x[None, None], 3, 2, 1, ceil_mode=True, count_include_pad=False).flatten(1),
    "activations": lambda x: F.mish(x) + F.hardsigmoid(x) + F.selu(x) + F.logsigmoid(x) + F.relu6(x) + F.softsign(x),
    "normal": lambda x: F.normalize(x, dim=1) + F.rms_norm(x, (3,)) + torch.logsumexp(x, 1, keepdim=True),
    "stack": lambda x: torch.stack(x.unbind(1), 0).repeat(2, 1).chunk(2, 0)[1].diagonal(),
    "constants": lambda x: x * torch.arange(3) + torch.full((4, 3), 2.0) + torch.tensor([1.0, 2.0, 3.0]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0],
    "no grad": lambda x: x * outside(x) * x.cos().detach(),
}


def outside(x):
    with torch.no_grad():
        return x.sin().mean()


@pytest.mark.x64
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation_and_its_derivative_are_pytorchs(name):
    inputs = rows(4, 3).astype(np.float64)
    theirs = torch.tensor(inputs, requires_grad=True)
    scores = FUNCTIONS[name](theirs)
    scores.sum().backward()
    network = TorchNetwork(single(FUNCTIONS[name]))
    np.testing.assert_allclose(network({}, jnp.asarray(inputs)), scores.detach().numpy(), atol=1e-9)
    gradient = jax.grad(lambda x: jnp.sum(network({}, x)))(jnp.asarray(inputs))
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), atol=1e-9)


def test_a_missing_operation_is_named_with_the_module_that_uses_it():
    class Spectral(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x)

    network = TorchNetwork(torch.nn.Sequential(torch.nn.Linear(3, 3), Spectral()))
    with pytest.raises(NotCompiledError, match=r"svd.*1 \(Spectral\)"):
        network(network.init(None), rows(4, 3))


def test_a_module_whose_steps_depend_on_numbers_cannot_be_traced():
    with pytest.raises(NotCompiledError, match="cannot trace"):
        TorchNetwork(single(lambda x: x if x.sum() > 0 else -x))({}, rows(4, 3))


def test_buffers_that_no_policy_covers_are_refused():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += x.sum()
            return x + self.seen

    with pytest.raises(ValueError, match="buffer 'seen'"):
        TorchNetwork(Counting()).apply({}, {}, rows(4, 3), train=True)


def dropout_module():
    return torch.nn.Sequential(torch.nn.Linear(3, 200), torch.nn.Dropout(0.25), torch.nn.Dropout(0.25))


def test_dropout_draws_from_the_key_alone():
    network = TorchNetwork(dropout_module())
    params, inputs = network.init(None), rows(4, 3)
    scores = lambda key, rows=4: network.apply(
        params, {}, jnp.asarray(inputs[:rows]), train=True, key=None if key is None else jax.random.key(key)
    )[0]
    whole = scores(None)
    np.testing.assert_allclose(whole, network(params, jnp.asarray(inputs)), atol=1e-6)  # off without a key
    np.testing.assert_array_equal(scores(1), scores(1))
    assert not np.array_equal(scores(1), scores(2))
    kept = np.asarray(scores(1)) != 0
    np.testing.assert_allclose(np.asarray(scores(1))[kept], (np.asarray(whole) / 0.75**2)[kept], rtol=1e-5)
    assert abs(kept.mean() - 0.75**2) < 0.08  # 5 deviations: the two layers draw apart
    np.testing.assert_allclose(scores(1)[:3], scores(1, 3), rtol=1e-6)  # further rows change no draw


@pytest.mark.parametrize("kind", ["dense", "image"])
def test_padding_has_no_part_in_statistics(kind):
    norm = torch.nn.BatchNorm1d(3) if kind == "dense" else torch.nn.BatchNorm2d(3)
    shape = (5, 3) if kind == "dense" else (5, 3, 2, 2)
    network, inputs = TorchNetwork(norm), rows(*shape)
    params, first = network.init(None), network.statistics()
    alone, moved = network.apply(params, first, jnp.asarray(inputs[:3]), train=True)
    kept = jnp.arange(5) < 3
    padded, also = network.apply(params, first, jnp.asarray(inputs), kept=kept, train=True)
    np.testing.assert_allclose(padded[:3], alone, atol=1e-5)
    for name in ("running_mean", "running_var"):
        np.testing.assert_allclose(also[name], moved[name], atol=1e-6)
        assert not np.array_equal(moved[name], first[name])


def test_group_norm_takes_the_place_of_batch_norm():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 12, 3), torch.nn.Sequential(torch.nn.BatchNorm2d(12)))
    torch.nn.init.constant_(module[1][0].weight, 2.0)
    network = TorchNetwork(module).with_group_norm()
    assert network.statistics() == {}
    assert network.module[1][0].num_groups == 6  # of 12 channels, two in a group at least
    assert sorted(network.init(None)) == ["0.bias", "0.weight", "1.0.bias", "1.0.weight"]
    assert float(network.init(None)["1.0.weight"][0]) == 2.0
    assert isinstance(module[1][0], torch.nn.BatchNorm2d)  # the module of the user stays as it was
    assert TorchNetwork(module).norm_params() == ("1.0.weight", "1.0.bias")
    assert with_group_norm(torch.nn.BatchNorm2d(1)).num_groups == 1
