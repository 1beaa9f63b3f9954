"""Models as plain functions over pytrees, and adapters for those of Flax NNX, Equinox and PyTorch."""

from fedspam.models.adapters import from_equinox, from_flax, from_torch
from fedspam.models.catalogue import (
    char_lstm,
    char_transformer,
    femnist_cnn,
    har_cnn,
    leaf_cnn,
    logistic_regression,
    mlp,
    softmax_regression,
)
from fedspam.models.convolution import conv1d, conv2d, conv_general_dilated, max_pool
from fedspam.models.model import Model, Network, RowLoss

__all__ = [
    "Model",
    "Network",
    "RowLoss",
    "char_lstm",
    "char_transformer",
    "conv1d",
    "conv2d",
    "conv_general_dilated",
    "femnist_cnn",
    "from_equinox",
    "from_flax",
    "from_torch",
    "har_cnn",
    "leaf_cnn",
    "logistic_regression",
    "max_pool",
    "mlp",
    "softmax_regression",
]
