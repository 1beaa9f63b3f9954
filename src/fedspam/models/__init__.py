"""Models as plain functions over pytrees, adapters for Flax NNX, Equinox and PyTorch modules, and trained models."""

from fedspam.models.adapters import (
    from_equinox as from_equinox,
    from_flax as from_flax,
    from_torch as from_torch,
    state_dict as state_dict,
)
from fedspam.models.catalogue import (
    char_lstm as char_lstm,
    char_transformer as char_transformer,
    femnist_cnn as femnist_cnn,
    har_cnn as har_cnn,
    leaf_cnn as leaf_cnn,
    logistic_regression as logistic_regression,
    mlp as mlp,
    nvflare_cnn as nvflare_cnn,
    resnet18 as resnet18,
    resnet20 as resnet20,
    softmax_regression as softmax_regression,
    vgg11 as vgg11,
)
from fedspam.models.convolution import (
    conv1d as conv1d,
    conv2d as conv2d,
    conv_general_dilated as conv_general_dilated,
    max_pool as max_pool,
)
from fedspam.models.images import Images as Images
from fedspam.models.model import (
    GroupNormNetwork as GroupNormNetwork,
    Model as Model,
    Network as Network,
    RowLoss as RowLoss,
    SquaredLoss as SquaredLoss,
    StatefulNetwork as StatefulNetwork,
    balanced_weights as balanced_weights,
)
from fedspam.models.moments import Moments as Moments
from fedspam.models.normalization import batch_norm as batch_norm, group_norm as group_norm
from fedspam.models.parts import lora as lora, merged as merged, train_part as train_part
from fedspam.models.policies import (
    POLICIES as POLICIES,
    Normalization as Normalization,
    own_statistics as own_statistics,
)
from fedspam.models.torch_graph import with_group_norm as with_group_norm
from fedspam.models.trained import TrainedModel as TrainedModel, load as load, save as save
