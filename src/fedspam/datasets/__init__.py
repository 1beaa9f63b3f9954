"""Data that lies on disk: one file a format, and the ways to split rows among clients."""

from fedspam.datasets.arrays import read_arrays
from fedspam.datasets.folder import FOLDER_VARIABLE, data_folder, data_path
from fedspam.datasets.har import ACTIVITIES, Activity, read_har
from fedspam.datasets.heart import HOSPITALS, Heart, read_heart
from fedspam.datasets.libsvm import Rows, read_libsvm
from fedspam.datasets.partition import by_key, dirichlet, iid, shards

__all__ = [
    "ACTIVITIES",
    "FOLDER_VARIABLE",
    "HOSPITALS",
    "Activity",
    "Heart",
    "Rows",
    "by_key",
    "data_folder",
    "data_path",
    "dirichlet",
    "iid",
    "read_arrays",
    "read_har",
    "read_heart",
    "read_libsvm",
    "shards",
]
