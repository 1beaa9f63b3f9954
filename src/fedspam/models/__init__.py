"""Models as plain functions over pytrees, and adapters for Flax NNX, Equinox and PyTorch modules."""

from fedspam.models.adapters import from_equinox as from_equinox
from fedspam.models.adapters import from_flax as from_flax
from fedspam.models.adapters import from_torch as from_torch
from fedspam.models.catalogue import char_lstm as char_lstm
from fedspam.models.catalogue import char_transformer as char_transformer
from fedspam.models.catalogue import femnist_cnn as femnist_cnn
from fedspam.models.catalogue import har_cnn as har_cnn
from fedspam.models.catalogue import leaf_cnn as leaf_cnn
from fedspam.models.catalogue import logistic_regression as logistic_regression
from fedspam.models.catalogue import mlp as mlp
from fedspam.models.catalogue import softmax_regression as softmax_regression
from fedspam.models.convolution import conv1d as conv1d
from fedspam.models.convolution import conv2d as conv2d
from fedspam.models.convolution import conv_general_dilated as conv_general_dilated
from fedspam.models.convolution import max_pool as max_pool
from fedspam.models.model import Model as Model
from fedspam.models.model import Network as Network
from fedspam.models.model import RowLoss as RowLoss
