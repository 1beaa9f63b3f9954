"""Networks for images: residual ones against PyTorch's, group normalization, and what dropout does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.models import group_norm, nvflare_cnn, resnet18, resnet20, vgg11
from fedspam.models.networks import Convolutional, Dropped, Residual

RNG = np.random.default_rng(0)
SMALL = Residual((8, 8, 3), 10, (4, 8), (2, 1))


def weights_of(module, network):
    """The parameters of a PyTorch module with the layers of the network in the same order, under our names."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch import nn

    layers = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.BatchNorm2d | nn.Linear)]
    convolutions = list(network._convolutions())
    params, own = {}, iter(layers)
    take = lambda leaf: jnp.asarray(leaf.detach().numpy().astype(np.float32))
    with torch.no_grad():
        for name in convolutions:
            convolution, norm = next(own), next(own)
            norm.weight.copy_(torch.tensor(RNG.normal(size=norm.weight.shape)))
            norm.bias.copy_(torch.tensor(RNG.normal(size=norm.bias.shape)))
            params[name] = {"kernel": jnp.transpose(take(convolution.weight), (2, 3, 1, 0))}
            params[f"{name}_norm"] = {"scale": take(norm.weight), "bias": take(norm.bias)}
        last = next(own)
        params["dense"] = {"kernel": take(last.weight).T, "bias": take(last.bias)}
    return params


def test_a_residual_network_is_that_of_pytorch():
    """Scores and running statistics of a training step, then the scores of a prediction with these statistics."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch_zoo import Basic, ResNet

    torch.manual_seed(0)
    module = ResNet(Basic, SMALL.widths, SMALL.blocks).float().train()
    params, images = weights_of(module, SMALL), RNG.normal(size=(5, 8, 8, 3)).astype(np.float32)
    theirs = torch.tensor(np.moveaxis(images, -1, 1))
    run = jax.jit(lambda statistics, train: SMALL.apply(params, statistics, images, train=train), static_argnums=1)
    scores, new = run(SMALL.statistics(), True)
    np.testing.assert_allclose(scores, module(theirs).detach().numpy(), atol=1e-4)
    found = [leaf.numpy() for name, leaf in module.named_buffers() if not name.endswith("batches_tracked")]
    assert len(found) == len(new)
    for name, leaf in zip(new, found, strict=True):
        np.testing.assert_allclose(new[name], leaf, atol=1e-5)
    scores, kept = run(new, False)
    np.testing.assert_allclose(scores, module.eval()(theirs).detach().numpy(), atol=1e-4)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), kept, new))


def test_group_norm_is_that_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rows, scale, bias = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 4, 5, 6), (6,), (6,)))
    for groups in (1, 2, 3, 6):
        theirs = torch.nn.functional.group_norm(
            torch.tensor(np.moveaxis(rows, -1, 1)), groups, torch.tensor(scale), torch.tensor(bias)
        )
        ours = group_norm(jnp.asarray(rows), jnp.asarray(scale), jnp.asarray(bias), groups=groups)
        np.testing.assert_allclose(np.moveaxis(np.asarray(ours), -1, 1), theirs.numpy(), atol=1e-5)


def test_group_norm_takes_the_place_of_batch_norm():
    network = SMALL.with_group_norm()
    assert network == dataclasses.replace(SMALL, norm="group")
    assert network.statistics() == {}
    assert network.norm_params() == ()
    assert set(SMALL.statistics()) == {
        f"{name.rsplit('.', 1)[0]}.{kind}" for name in SMALL.norm_params() for kind in ("mean", "var")
    }
    rows = jnp.asarray(RNG.normal(size=(4, 8, 8, 3)), jnp.float32)
    params = network.init(jax.random.key(0))
    apply = jax.jit(lambda rows: network.apply(params, None, rows, train=True)[0])
    np.testing.assert_allclose(apply(rows)[:1], apply(rows[:1]), atol=1e-5)  # a row does not see the others


def test_dropout_is_unbiased_and_drops_whole_channels_of_images():
    network = Dropped((6, 6, 2), 3, (4,), (3, 3), (2,), (5,), dropout=(("conv0", 0.5), ("dense1", 0.25)))
    params, rows = network.init(jax.random.key(0)), jnp.asarray(RNG.normal(size=(7, 6, 6, 2)), jnp.float32)
    plain = Convolutional(*(getattr(network, field.name) for field in dataclasses.fields(Convolutional)))
    np.testing.assert_array_equal(network(params, rows), plain(params, rows))
    np.testing.assert_array_equal(network.apply(params, {}, rows, key=jax.random.key(1))[0], plain(params, rows))
    kinds = {}

    def see(hidden, layer):
        kinds.setdefault(layer, hidden)
        return hidden

    network._scores(params, rows, see)
    assert {layer: leaf.shape for layer, leaf in kinds.items()} == {
        "conv0": (7, 2, 2, 4), "dense0": (7, 16), "dense1": (7, 5)
    }  # fmt: skip
    whole = dataclasses.replace(network, dropout=(("conv0", 0.5),), hidden=())
    params = {"conv0": params["conv0"], "dense0": {"kernel": jnp.eye(16), "bias": jnp.zeros(16)}}
    whole = dataclasses.replace(whole, classes=16)
    draw = jax.jit(lambda key: whole.apply(params, {}, rows, key=key, train=True)[0])
    drawn = np.asarray(draw(jax.random.key(2))).reshape(7, 4, 4)
    plain = np.asarray(whole(params, rows)).reshape(7, 4, 4)
    for row in range(7):
        for channel in range(4):  # all pixels of a channel are kept, and doubled, or none is
            after, before = drawn[row, :, channel], plain[row, :, channel]
            np.testing.assert_allclose(after, 2 * before * after.any(), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(drawn, np.asarray(draw(jax.random.key(3))).reshape(7, 4, 4))


def test_a_layer_that_drops_everything_has_no_gradient():
    network = Dropped((6, 6, 2), 3, (4,), (3, 3), (2,), (5,), dropout=(("dense0", 1.0),))
    params, rows = network.init(jax.random.key(0)), jnp.asarray(RNG.normal(size=(7, 6, 6, 2)), jnp.float32)
    total = lambda params: jnp.sum(network.apply(params, {}, rows, key=jax.random.key(1), train=True)[0])
    gradient = jax.grad(total)(params)
    assert not np.any(gradient["conv0"]["kernel"])
    assert np.any(gradient["dense1"]["bias"])


def test_sizes_of_the_networks_of_papers():
    sizes = {
        resnet18: 11_173_962, resnet20: 272_474, vgg11: 9_750_922, nvflare_cnn: 3_491_530
    }  # fmt: skip
    for make, size in sizes.items():
        shapes = jax.eval_shape(make().init, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == size
    averaged = resnet20(normalization="averaged").init(0)
    assert set(averaged) == {"params", "statistics"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Residual((8, 8, 3), 10, (4, 8), (2,)), "give as many widths"),
        (lambda: Residual((8, 8, 3), 10, (4,), (2,), "layer"), "norm = 'layer'"),
        (lambda: Dropped((6, 6, 2), 3, (4,), (3, 3), (2,), (5,), dropout=(("conv1", 0.5),)), "dropout = 'conv1'"),
        (lambda: Dropped((6, 6, 2), 3, (4,), (3, 3), (2,), (5,), dropout=(("conv0", 1.5),)), "dropout of conv0"),
        (lambda: resnet20(normalization="layer"), "normalization = 'layer'"),
        (lambda: resnet20(normalization=None), "normalization = None must be one of"),
    ],
)
def test_wrong_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
