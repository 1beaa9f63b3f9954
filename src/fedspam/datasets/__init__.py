"""Data that lies on disk or is made on demand: one file a format, and the ways to split rows among clients."""

from fedspam.datasets.arrays import read_arrays
from fedspam.datasets.federated import FederatedData
from fedspam.datasets.femnist import Femnist, read_femnist
from fedspam.datasets.folder import FOLDER_VARIABLE, data_folder, data_path
from fedspam.datasets.har import ACTIVITIES, Activity, read_har, read_har_windows
from fedspam.datasets.heart import HOSPITALS, Heart, read_heart
from fedspam.datasets.idx import read_idx, read_labelled
from fedspam.datasets.leaf import read_leaf, stream_leaf
from fedspam.datasets.libsvm import Rows, read_libsvm
from fedspam.datasets.mapped import open_mapped, write_mapped
from fedspam.datasets.partition import by_key, dirichlet, iid, shards
from fedspam.datasets.shakespeare import Shakespeare, read_roles, read_shakespeare
from fedspam.datasets.synthetic import endless, read_digits, synthetic
from fedspam.datasets.table import from_partitions, from_table, read_csv
from fedspam.datasets.text import ALPHABET, SYMBOLS, decode, encode, sequences
from fedspam.datasets.tff import read_tff, stream_tff

__all__ = [
    "ACTIVITIES",
    "ALPHABET",
    "FOLDER_VARIABLE",
    "HOSPITALS",
    "SYMBOLS",
    "Activity",
    "FederatedData",
    "Femnist",
    "Heart",
    "Rows",
    "Shakespeare",
    "by_key",
    "data_folder",
    "data_path",
    "decode",
    "dirichlet",
    "encode",
    "endless",
    "from_partitions",
    "from_table",
    "iid",
    "open_mapped",
    "read_arrays",
    "read_csv",
    "read_digits",
    "read_femnist",
    "read_har",
    "read_har_windows",
    "read_heart",
    "read_idx",
    "read_labelled",
    "read_leaf",
    "read_libsvm",
    "read_roles",
    "read_shakespeare",
    "read_tff",
    "sequences",
    "shards",
    "stream_leaf",
    "stream_tff",
    "synthetic",
    "write_mapped",
]
