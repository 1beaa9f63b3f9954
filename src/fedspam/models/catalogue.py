"""The models that papers on federated learning train."""

from fedspam.models.model import Model
from fedspam.models.networks import Convolutional, Dropped, Linear, Perceptron, Residual
from fedspam.models.policies import Normalization
from fedspam.models.sequences import Recurrent, Transformer


def softmax_regression(
    inputs: int, classes: int, *, bias: bool = True, regularization: float = 0.0, dtype: str = "float32"
) -> Model:
    """Multinomial logistic regression; it starts at zero.

    >>> import jax
    >>> params = softmax_regression(784, 62).init(0)
    >>> params["kernel"].shape, params["bias"].shape
    ((784, 62), (62,))
    """
    return Model(Linear(inputs, classes, bias), dtype, regularization)


def logistic_regression(
    inputs: int, *, bias: bool = True, regularization: float = 0.0, dtype: str = "float32"
) -> Model:
    """Logistic regression: one score, labels 0 (or -1) and 1; it starts at zero."""
    return Model(Linear(inputs, 1, bias), dtype, regularization)


def mlp(inputs: int, classes: int, *, hidden: tuple[int, ...] = (200, 200), dtype: str = "float32") -> Model:
    """Dense layers with ReLU; the default is the "2NN" of McMahan et al. 2017."""
    return Model(Perceptron(inputs, classes, tuple(hidden)), dtype)


def femnist_cnn(classes: int = 62, *, dtype: str = "float32") -> Model:
    """The CNN of Reddi et al. 2021 for EMNIST, without dropout: 3x3x32, 3x3x64, pool, 128; 1.2 million parameters.

    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization, 2021,
    arXiv:2003.00295.

    >>> import jax
    >>> sum(leaf.size for leaf in jax.tree.leaves(femnist_cnn().init(0)))
    1206590
    """
    return Model(Convolutional((28, 28, 1), classes, (32, 64), (3, 3), (1, 2), (128,)), dtype)


def leaf_cnn(classes: int = 62, *, hidden: int = 256, dtype: str = "float32") -> Model:
    """The CNN for FEMNIST of LEAF: 5x5x32, pool, 5x5x64, pool, a dense layer (2048 wide in LEAF itself).

    Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar: LEAF, 2018, arXiv:1812.01097.
    """
    return Model(Convolutional((28, 28, 1), classes, (32, 64), (5, 5), (2, 2), (hidden,), "SAME"), dtype)


def har_cnn(
    classes: int = 6, *, length: int = 128, channels: int = 6, hidden: int = 128, dtype: str = "float32"
) -> Model:
    """A one-dimensional CNN for windows of a phone's sensors: 9x32, pool 4, 9x64, pool 4, a dense layer."""
    return Model(Convolutional((length, channels), classes, (32, 64), (9,), (4, 4), (hidden,), "SAME"), dtype)


def resnet20(
    classes: int = 10, *, shape: tuple[int, ...] = (32, 32, 3), normalization: Normalization | str = "group",
    dtype: str = "float32",
) -> Model:  # fmt: skip
    """The residual network of 20 layers for CIFAR-10: widths 16, 32 and 64, three blocks each; 272,474 parameters.

    Arguments:
        classes: how many.
        shape: of an image: height, width, channels.
        normalization: 'group' for group normalization, or what happens to the statistics of batch normalization:
            'averaged', 'local' or 'recalibrated' (`POLICIES`).
        dtype: of the computation.

    He, Zhang, Ren, Sun: Deep residual learning for image recognition, 2015, arXiv:1512.03385. The shortcut of a block
    that changes the size is a convolution (option B).

    >>> import jax
    >>> sum(leaf.size for leaf in jax.tree.leaves(resnet20().init(0)))
    272474
    """
    return _residual(classes, shape, (16, 32, 64), (3, 3, 3), normalization, dtype)


def resnet18(
    classes: int = 10, *, shape: tuple[int, ...] = (32, 32, 3), normalization: Normalization | str = "group",
    dtype: str = "float32",
) -> Model:  # fmt: skip
    """The residual network of 18 layers with a first convolution of 3 x 3, as for CIFAR-10; 11.2 million parameters.

    Arguments: as of `resnet20`.
    """
    return _residual(classes, shape, (64, 128, 256, 512), (2, 2, 2, 2), normalization, dtype)


def _residual(
    classes: int, shape: tuple[int, ...], widths: tuple[int, ...], blocks: tuple[int, ...],
    normalization: Normalization | str, dtype: str,
) -> Model:  # fmt: skip
    policy = normalization if isinstance(normalization, Normalization) else Normalization(normalization)
    norm = "group" if policy.policy == "group" else "batch"
    network = Residual(tuple(shape), classes, widths, blocks, norm)
    return Model(network, dtype, normalization=None if norm == "group" else policy)


def vgg11(
    classes: int = 10, *, shape: tuple[int, ...] = (32, 32, 3), hidden: tuple[int, ...] = (512, 512),
    dropout: float = 0.0, dtype: str = "float32",
) -> Model:  # fmt: skip
    """VGG-11 for small images, without normalization: eight convolutions of 3 x 3, five pools; 9,750,922 parameters.

    Arguments:
        dropout: its rate before each hidden layer.

    Simonyan, Zisserman: Very deep convolutional networks for large-scale image recognition, 2014, arXiv:1409.1556.

    >>> import jax
    >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(vgg11().init, 0)))
    9750922
    """
    sizes = (64, 128, 256, 256, 512, 512, 512, 512), (3, 3), (2, 2, 1, 2, 1, 2, 1, 2), tuple(hidden), "SAME"
    if not dropout:
        return Model(Convolutional(tuple(shape), classes, *sizes), dtype)
    rates = tuple((f"dense{layer}", dropout) for layer in range(len(hidden)))
    return Model(Dropped(tuple(shape), classes, *sizes, rates), dtype)


def nvflare_cnn(classes: int = 10, *, shape: tuple[int, ...] = (32, 32, 3), dtype: str = "float32") -> Model:
    """The moderate CNN of FedMA, as NVFlare's CIFAR-10 example trains it: six convolutions, dropout, 3.5 million.

    Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated learning with matched averaging, 2020, arXiv:2002.06440.

    >>> import jax
    >>> sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(nvflare_cnn().init, 0)))
    3491530
    """
    network = Dropped(
        tuple(shape), classes, (32, 64, 128, 128, 256, 256), (3, 3), (1, 2, 1, 2, 1, 2), (512, 512), "SAME",
        (("conv3", 0.05), ("dense0", 0.1), ("dense2", 0.1)),
    )  # fmt: skip
    return Model(network, dtype)


def char_lstm(
    alphabet: int = 80, *, embedding: int = 8, hidden: int = 256, layers: int = 2, every: bool = False,
    dtype: str = "float32",
) -> Model:  # fmt: skip
    """The character model of LEAF: two LSTMs of width 256 over an embedding of width 8 predict the next character.

    Arguments:
        every: predict the next character at every place (``label`` has one per place), not only at the last.

    McMahan et al. 2017, arXiv:1602.05629; Caldas et al. 2018, arXiv:1812.01097.
    """
    return Model(Recurrent(alphabet, embedding, hidden, layers, every), dtype)


def char_transformer(
    alphabet: int = 80, *, length: int = 80, width: int = 128, heads: int = 4, layers: int = 2, every: bool = True,
    dtype: str = "float32",
) -> Model:  # fmt: skip
    """A small causal transformer over characters; by default it predicts the next character at every place."""
    return Model(Transformer(alphabet, length, width, heads, layers, every), dtype)
