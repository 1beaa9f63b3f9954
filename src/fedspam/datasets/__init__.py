"""Readers of data files, one module per format, and ways to split rows among clients."""

from fedspam.datasets.arrays import read_arrays as read_arrays
from fedspam.datasets.catalog import KNOWN as KNOWN, DataFile as DataFile, KnownData as KnownData
from fedspam.datasets.cifar import read_cifar10 as read_cifar10
from fedspam.datasets.encoder import CategoryColumn as CategoryColumn, Encoder as Encoder, NumberColumn as NumberColumn
from fedspam.datasets.federated import FederatedData as FederatedData
from fedspam.datasets.femnist import Femnist as Femnist, read_femnist as read_femnist
from fedspam.datasets.folder import (
    FOLDER_VARIABLE as FOLDER_VARIABLE,
    data_folder as data_folder,
    data_path as data_path,
)
from fedspam.datasets.har import (
    ACTIVITIES as ACTIVITIES,
    Activity as Activity,
    read_har as read_har,
    read_har_windows as read_har_windows,
)
from fedspam.datasets.heart import HOSPITALS as HOSPITALS, Heart as Heart, read_heart as read_heart
from fedspam.datasets.hugging_face import from_dataset as from_dataset, from_partitions as from_partitions
from fedspam.datasets.idx import read_idx as read_idx, read_labeled as read_labeled
from fedspam.datasets.leaf import read_leaf as read_leaf, stream_leaf as stream_leaf
from fedspam.datasets.libsvm import Rows as Rows, read_libsvm as read_libsvm
from fedspam.datasets.mapped import open_mapped as open_mapped, write_mapped as write_mapped
from fedspam.datasets.partition import by_key as by_key, dirichlet as dirichlet, iid as iid, shards as shards
from fedspam.datasets.shakespeare import (
    Shakespeare as Shakespeare,
    read_roles as read_roles,
    read_shakespeare as read_shakespeare,
)
from fedspam.datasets.standardizer import Standardizer as Standardizer
from fedspam.datasets.suspicions import suspicions as suspicions
from fedspam.datasets.synthetic import endless as endless, read_digits as read_digits, synthetic as synthetic
from fedspam.datasets.table import Table as Table, open_table as open_table, read_table as read_table
from fedspam.datasets.text import (
    ALPHABET as ALPHABET,
    SYMBOLS as SYMBOLS,
    decode as decode,
    encode as encode,
    sequences as sequences,
)
from fedspam.datasets.tff import read_tff as read_tff, stream_tff as stream_tff
