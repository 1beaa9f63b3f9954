"""CIFAR-10 from its binary batches and from PNG sheets, and what is refused in them."""

import json
import struct
import zlib

import numpy as np
import pytest

from fedspam.datasets import read_cifar10
from readers import CIFAR, CIFAR_NAMES, sheet


@pytest.fixture
def folder(tmp_path):
    """A folder with one image in every sheet."""
    own = tmp_path / "cifar10"
    own.mkdir()
    for name in CIFAR_NAMES:
        (own / f"{name}.png").write_bytes(sheet())
    (own / "train_lables.json").write_text("[0, 1, 2, 3, 9]")
    (own / "test_lables.json").write_text("[7]")
    return tmp_path


def test_batches_are_images_with_channels_last(tmp_path):
    (tmp_path / "cifar10").mkdir()
    for name in CIFAR_NAMES:
        (tmp_path / "cifar10" / f"{name}.bin").write_bytes(CIFAR)
    train, test = read_cifar10(tmp_path)
    assert train["features"].shape == (5, 32, 32, 3)
    assert test["label"].tolist() == [3]
    np.testing.assert_array_equal(test["features"][0].transpose(2, 0, 1).ravel(), np.frombuffer(CIFAR[1:], np.uint8))


def test_sheets_have_the_labels_beside_them(folder):
    train, test = read_cifar10(folder)
    assert (train["label"].tolist(), test["label"].tolist()) == ([0, 1, 2, 3, 9], [7])
    assert test["features"].shape == (1, 32, 32, 3)


@pytest.mark.parametrize("labels", [[0.9], ["7"], [True], [10], [-1], [7, 7], [], {"7": 7}, 7])
def test_labels_are_whole_numbers_and_none_is_rounded(folder, labels):
    (folder / "cifar10" / "test_lables.json").write_text(json.dumps(labels))
    with pytest.raises(ValueError, match="must hold a list of 1 whole labels from 0 to 9"):
        read_cifar10(folder)


def test_a_sheet_that_claims_too_many_pixels_is_refused(folder):
    """Pillow refuses it with an error that is not a ValueError."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1024, 10**6, 8, 2, 0, 0, 0))
    path = folder / "cifar10" / "test_batch.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b""))
    with pytest.raises(ValueError, match=r"test_batch.png cannot be read.*it should be a batch of CIFAR-10"):
        read_cifar10(folder)
