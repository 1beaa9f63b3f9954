"""The sections of a configuration: every setting with its type, its limits, its default and one line of description.

`[data]` and `[model]` have one struct per kind. The structs of `[method]` and `[prox]` follow from the constructors
of methods and solvers, see `fedspam.app.config.methods`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

Whole = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]
Character = Annotated[str, Meta(min_length=1, max_length=1)]
Place = Annotated[str, Meta(pattern=r"^.+\.py:[A-Za-z_]\w*$")]


def _about(text: str) -> Meta:
    return Meta(description=text)


File = Annotated[Text, _about("the file, relative to the configuration's folder")]
Folder = Annotated[str | None, _about("the folder of the data sets; default $FEDSPAM_DATA, else ./data")]
Task = Annotated[Literal["classes", "numbers"], _about("what the label is; classes are numbered 0, 1, ...")]
TestShare = Annotated[Share, _about("share of every client's rows that is held out for testing")]
Standardize = Annotated[bool, _about("scale features to mean 0 and deviation 1 over the training rows")]
Penalty = Annotated[NotNegative, _about("weight of the quadratic penalty")]
Bias = Annotated[bool, _about("whether the model has a bias")]
ClientCount = Annotated[Whole, _about("number of clients")]
Dimension = Annotated[Whole, _about("number of parameters")]
DataSeed = Annotated[Natural, _about("seed of the drawn clients")]


def name_of(section: Struct) -> str:
    """The name or kind of a section: the value of the key that selects its struct."""
    return str(type(section).__struct_config__.tag)


# --- [data] ----------------------------------------------------------------------------------------------------------


class DataSection(Struct, frozen=True, kw_only=True):
    """A kind of data."""

    has_loss: ClassVar[bool] = False  # such data needs no [model]
    has_clients: ClassVar[bool] = False  # such data needs no split into clients


class ProblemSection(DataSection, frozen=True, kw_only=True, tag_field="kind", tag="problem"):
    """A problem of `fedspam compare`, with its clients, its loss and its start."""

    has_loss = has_clients = True
    name: Annotated[Text, _about("ridge, ridge-similar, quadratics, a9a, mushrooms, har, heart, ...")]
    folder: Folder = None


class QuadraticsSection(DataSection, frozen=True, kw_only=True, tag_field="kind", tag="quadratics"):
    """Random quadratic clients with exactly the given similarity and noise; no file is read."""

    has_loss = has_clients = True
    clients: ClientCount = 100
    dimension: Dimension = 20
    delta: Annotated[Positive, _about("how much the clients' Hessians differ")] = 0.1
    condition: Annotated[float, Meta(ge=1), _about("largest over smallest curvature of f")] = 10.0
    curvature: Annotated[Positive, _about("smallest curvature of f")] = 1.0
    noise: Annotated[NotNegative, _about("spread of the clients' gradients at the minimizer")] = 0.1
    seed: DataSeed = 0


class RidgeSection(DataSection, frozen=True, kw_only=True, tag_field="kind", tag="random_ridge"):
    """The paper's ridge regression with random clients; no file is read."""

    has_loss = has_clients = True
    clients: ClientCount = 10
    dimension: Dimension = 100
    scale: Annotated[NotNegative, _about("of the part in which clients differ; decides their similarity")] = 1.0
    regularization: Penalty = 0.1
    seed: DataSeed = 0


class RowsSection(DataSection, frozen=True, kw_only=True):
    """Data that consists of labeled examples."""

    test: TestShare = 0.2
    standardize: Standardize = True
    intercept: Annotated[bool, _about("add a feature that is always 1, for a loss of your own without a bias")] = False


class Csv(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="csv"):
    """A table with a header. One column is the label, and one may name the client of each row. Text becomes
    categories, missing values are filled in."""

    path: File
    label: Annotated[Text, _about("the column to predict")]
    client: Annotated[Text | None, _about("the column that names the client of a row; without it see [clients]")] = None
    features: Annotated[list[Text] | None, _about("the columns to predict from; default all others")] = None
    drop: Annotated[list[Text], _about("columns to leave out")] = []
    categories: Annotated[list[Text], _about("columns of numbers that are codes: one feature per value")] = []
    delimiter: Annotated[
        Character | None, _about("between two cells; default the most frequent of , ; tab and | in the header")
    ] = None
    task: Task = "classes"


class TableSection(Csv, frozen=True, kw_only=True, tag_field="kind", tag="table"):
    """The same as csv, for a file of Parquet (.parquet) or Arrow (.arrow, .feather), which needs pyarrow; or CSV."""


class Npz(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="npz"):
    """NumPy's .npz archive: a matrix of features, a vector of labels, and perhaps a vector of clients."""

    path: File
    features: Annotated[Text, _about("the array of features, one row per example")] = "x"
    label: Annotated[Text, _about("the array of labels")] = "y"
    client: Annotated[Text | None, _about("the array that names the client of a row; without it see [clients]")] = None
    task: Task = "classes"


class Libsvm(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="libsvm"):
    """A file in LIBSVM's format, plain, .gz or .bz2. [clients] splits its rows among clients."""

    path: File
    features: Annotated[Whole | None, _about("number of features; default the largest index")] = None
    standardize: Standardize = False
    task: Task = "classes"


class Idx(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="idx"):
    """Images and labels in the format of MNIST and Fashion-MNIST, plain or .gz. [clients] splits them among clients."""

    images: Annotated[Text, _about("the file of the images, relative to the configuration's folder")]
    labels: Annotated[Text, _about("the file of their labels")]
    standardize: Standardize = False
    task: ClassVar[str] = "classes"


class Digits(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="digits"):
    """The 1797 handwritten digits of scikit-learn. [clients] splits them among clients."""

    task: ClassVar[str] = "classes"


class Synthetic(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="synthetic"):
    """LEAF's synthetic(alpha, beta): the classes follow a linear model that differs from client to client."""

    has_clients = True
    task: ClassVar[str] = "classes"
    clients: ClientCount = 30
    dimension: Annotated[Whole, _about("number of features")] = 60
    classes: Annotated[int, Meta(ge=2), _about("number of labels")] = 10
    alpha: Annotated[NotNegative, _about("how much the clients' models differ")] = 0.5
    beta: Annotated[NotNegative, _about("how much their features differ")] = 0.5
    seed: DataSeed = 0


class Leaf(DataSection, frozen=True, kw_only=True, tag_field="kind", tag="leaf"):
    """LEAF's JSON with numeric features, one file or a folder of them. Its users are the clients."""

    has_clients = True
    task: ClassVar[str] = "classes"
    path: Annotated[Text, _about("file or folder, relative to the configuration's folder")]
    test: TestShare = 0.2


class Parts(DataSection, frozen=True, kw_only=True, tag_field="kind", tag="parts"):
    """A folder of parts, each a folder that fedspam.datasets.write_mapped wrote, with columns features and label. Every
    device gets some parts; a host reads only those of its own devices."""

    has_clients = True
    path: Annotated[Text, _about("the folder, relative to the configuration's folder")]
    test_path: Annotated[Text | None, _about("a folder of write_mapped with test rows, which every host reads")] = None
    task: Task = "classes"


class FemnistSection(DataSection, frozen=True, kw_only=True, tag_field="kind", tag="femnist"):
    """Handwritten characters of 184 writers, images of 28 x 28 bytes, with their own test rows."""

    has_clients = True
    task: ClassVar[str] = "classes"
    folder: Folder = None


def _by_name(*kinds: type[Struct]) -> dict[str, Any]:
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


DATA: Mapping[str, type[DataSection]] = _by_name(
    Csv, TableSection, Npz, Libsvm, Idx, Leaf, Parts, FemnistSection, Digits, Synthetic, QuadraticsSection,
    RidgeSection, ProblemSection,
)  # fmt: skip


class Clients(Struct, frozen=True, kw_only=True):
    """How rows are split among clients where the data does not say, and how clients use their rows."""

    split: Annotated[
        Literal["iid", "dirichlet", "shards"] | None, _about("how rows without a client column are split")
    ] = None
    count: Annotated[Whole, _about("number of clients to split them among")] = 10
    alpha: Annotated[Positive, _about("dirichlet: evenness; 100 is nearly even, 0.1 very uneven")] = 1.0
    each: Annotated[Whole, _about("shards: classes per client, about")] = 2
    least: Annotated[Whole, _about("dirichlet: fewest rows of a client")] = 5
    seed: Annotated[Natural, _about("seed of the split")] = 0
    batch: Annotated[Whole | None, _about("rows per minibatch; default all rows of a client")] = None
    weighted: Annotated[bool, _about("weight clients by their number of rows instead of equally")] = False


# --- [model] ---------------------------------------------------------------------------------------------------------


class Function(Struct, frozen=True, kw_only=True):
    """A loss of your own: (params, rows) -> one loss per row, in a Python file that is run."""

    function: Annotated[Place, _about("file and name of the loss: my_model.py:loss")]


def own_loss(model: Struct | None) -> str | None:
    """The file and name of a loss of the user's own; None for the models of this package."""
    return model.function if isinstance(model, Function) else None


class _Classifier(Struct, frozen=True, kw_only=True):
    """A model that predicts classes."""

    class_weights: Annotated[
        Literal["balanced"] | dict[str, Positive] | None,
        _about("weight of a row's loss by class; 'balanced' gives every class the same part; default 1"),
    ] = None


class _Regression(_Classifier, frozen=True, kw_only=True):
    """A linear model of classes."""

    regularization: Penalty = 1e-3
    bias: Bias = True


class Logistic(_Regression, frozen=True, kw_only=True, tag_field="name", tag="logistic"):
    """Logistic regression, for two classes."""


class Softmax(_Regression, frozen=True, kw_only=True, tag_field="name", tag="softmax"):
    """Softmax regression, for any number of classes."""


class LinearSection(Struct, frozen=True, kw_only=True, tag_field="name", tag="linear"):
    """Least squares, for labels that are numbers."""

    regularization: Penalty = 1e-3
    bias: Bias = True


class Mlp(_Classifier, frozen=True, kw_only=True, tag_field="name", tag="mlp"):
    """Dense layers with ReLU between them, for any number of classes."""

    hidden: Annotated[list[Whole], _about("widths of the hidden layers")] = field(default_factory=lambda: [64])


class FemnistCnn(_Classifier, frozen=True, kw_only=True, tag_field="name", tag="femnist_cnn"):
    """The CNN of Reddi et al. for images of 28 x 28."""


class LeafCnn(_Classifier, frozen=True, kw_only=True, tag_field="name", tag="leaf_cnn"):
    """The CNN of LEAF for images of 28 x 28."""

    hidden: Annotated[Whole, _about("width of the dense layer")] = 256


MODELS: Mapping[str, type[Struct]] = _by_name(Logistic, Softmax, LinearSection, Mlp, FemnistCnn, LeafCnn)


# --- [run], [keep], [watch], [codecs], [evaluate], [track] -----------------------------------------------------------


class RunSection(Struct, frozen=True, kw_only=True):
    """The length of the run, its randomness, and what it records."""

    rounds: Annotated[Whole, _about("number of rounds")] = 100
    seed: Annotated[Natural, _about("seed of cohorts, minibatches and initial parameters")] = 0
    precision: Annotated[Literal["float32", "float64"], _about("of all numbers")] = "float32"
    record: Annotated[list[Text] | None, _about("columns of the method's info to record; default all")] = None
    chunk: Annotated[Whole | None, _about("clients computed side by side; default chosen by memory")] = None
    quorum: Annotated[float, Meta(ge=0, le=1), _about("share of a cohort that must reply")] = 0.0


class KeepSection(Struct, frozen=True, kw_only=True):
    """How often checkpoints are written, and how many stay."""

    every: Annotated[Whole, _about("rounds between two checkpoints and updates of the progress bar")] = 50
    last: Annotated[Whole, _about("number of newest checkpoints to keep")] = 2


class WatchSection(Struct, frozen=True, kw_only=True):
    """When a diverging run is stopped."""

    growth: Annotated[
        NotNegative, _about("stop when the gradient norm has grown by this factor since the start; 0 never stops")
    ] = 1e6


class CodecsSection(Struct, frozen=True, kw_only=True):
    """How messages and replies are compressed, each by a text such as quantize-4, natural, topk-0.1 or float16."""

    up: Annotated[Text | None, _about("codec of all replies")] = None
    down: Annotated[Text | None, _about("codec of all messages")] = None
    fields: Annotated[
        dict[str, Text] | None, _about("codecs by field of a message, part of a reply or work; 'none' for none")
    ] = None


class FineTune(Struct, frozen=True, kw_only=True):
    """Steps that each client takes alone, from the trained model."""

    local_steps: Whole
    local_rate: Positive


class Evaluate(Struct, frozen=True, kw_only=True):
    """What is evaluated during the run."""

    every: Annotated[Whole, _about("rounds between two evaluations, each a pass over all rows")] = 1
    metric: Annotated[
        Literal["loss", "gradient", "accuracy", "balanced_accuracy", "f1", "rare_f1", "auc", "rmse"] | None,
        _about(
            "metric of target and patience; default accuracy, or balanced_accuracy if one class has 80 %; else loss"
        ),
    ] = None
    target: Annotated[float | None, _about("value to reach; the summary says when and at what cost")] = None
    stop: Annotated[bool, _about("end the run when the target is reached")] = False
    patience: Annotated[Whole | None, _about("end the run after this many evaluations without improvement")] = None
    threshold: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | Literal["accuracy", "balanced_accuracy", "f1", "rare_f1"] | None,
        _about(
            "probability from which the rarer of two classes is predicted, or the metric of the training rows that "
            "it is chosen for; after the run, for scores and predictions"
        ),
    ] = None
    fine_tune: Annotated[
        FineTune | None, _about("after the run, also test a model of each client's own, trained further on its rows")
    ] = None


class Track(Struct, frozen=True, kw_only=True):
    """Where curves are sent besides the run folder."""

    to: Annotated[
        list[Literal["tensorboard", "mlflow", "wandb", "trackio"]], _about("one or several; each needs its extra")
    ] = []
    project: Annotated[Text, _about("MLflow's experiment, W&B's and trackio's project")] = "fedspam"
    name: Annotated[Text | None, _about("name of the run; default the name of its folder")] = None
    place: Annotated[Text | None, _about("TensorBoard's folder or MLflow's address; default the run folder")] = None


class Config(Struct, frozen=True, kw_only=True):
    """A whole experiment. Every setting has its value.

    Arguments:
        method: its ``name`` in `fedspam.methods.METHODS`, and the arguments of its constructor.
        prox: the ``name`` of a local solver and its arguments; None for the method's default.
    """

    data: Any
    clients: Clients
    model: Any
    method: Struct
    prox: Struct | None
    run: RunSection
    keep: KeepSection
    watch: WatchSection
    codecs: CodecsSection | None
    evaluate: Evaluate
    track: Track


SECTIONS = Config.__struct_fields__
# the sections that have one struct each
PLAIN: Mapping[str, type[Struct]] = {
    "clients": Clients, "run": RunSection, "keep": KeepSection, "watch": WatchSection, "codecs": CodecsSection,
    "evaluate": Evaluate, "track": Track,
}  # fmt: skip
