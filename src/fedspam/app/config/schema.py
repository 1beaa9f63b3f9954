"""The sections of a configuration: every setting with its type, its limits, its default and one line about it.

A section of several kinds (`[data]`, `[model]`) has a struct for each; those of `[algorithm]` and `[prox]` are made
from the methods and solvers themselves, see `fedspam.app.config.methods`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Whole = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]


def _about(text: str) -> Meta:
    return Meta(description=text)


# --- [data]: what is read --------------------------------------------------------------------------------------------


class ProblemSection(Struct, frozen=True, kw_only=True, tag_field="kind", tag="problem"):
    """A problem of `fedspam compare`, with its clients, its loss and its start."""

    name: Annotated[Text, _about("ridge, ridge-similar, quadratics, a9a, mushrooms, har, heart, ...")]
    folder: Annotated[str | None, _about("where the data sets lie; else $FEDSPAM_DATA, ./data")] = None


class QuadraticsSection(Struct, frozen=True, kw_only=True, tag_field="kind", tag="quadratics"):
    """Random quadratic clients with exactly the similarity and noise that are asked for; nothing is read."""

    clients: Annotated[Whole, _about("how many")] = 100
    dimension: Annotated[Whole, _about("of the parameters")] = 20
    delta: Annotated[Positive, _about("how much the clients' Hessians differ")] = 0.1
    condition: Annotated[float, Meta(ge=1), _about("largest over least curvature of f")] = 10.0
    curvature: Annotated[Positive, _about("least curvature of f")] = 1.0
    noise: Annotated[NotNegative, _about("spread of the clients' gradients at the minimiser")] = 0.1
    seed: Annotated[Natural, _about("which draw of clients")] = 0


class RidgeSection(Struct, frozen=True, kw_only=True, tag_field="kind", tag="random_ridge"):
    """The paper's ridge regression, drawn at random; nothing is read."""

    clients: Annotated[Whole, _about("how many")] = 10
    dimension: Annotated[Whole, _about("of the parameters")] = 100
    scale: Annotated[NotNegative, _about("of the clients' own part, which makes their similarity")] = 1.0
    regularization: Annotated[NotNegative, _about("weight of the quadratic penalty")] = 0.1
    seed: Annotated[Natural, _about("which draw of clients")] = 0


class RowsSection(Struct, frozen=True, kw_only=True):
    """What all kinds of data that consist of examples have in common."""

    test: Annotated[Share, _about("share of every client's rows that is held out to test on")] = 0.2
    standardise: Annotated[bool, _about("scale features to mean 0 and deviation 1 over the training rows")] = True
    intercept: Annotated[bool, _about("add a feature that is always 1, for a loss of one's own without a bias")] = False


class Csv(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="csv"):
    """A table with a header, of which one column is the label and one tells whose row it is."""

    path: Annotated[Text, _about("the file, seen from the configuration's folder")]
    label: Annotated[Text, _about("the column to predict")]
    client: Annotated[Text | None, _about("the column that tells whose row it is; else see [clients]")] = None
    features: Annotated[list[Text] | None, _about("columns to predict from; else all others")] = None
    separator: Annotated[str, Meta(min_length=1, max_length=1), _about("between two cells")] = ","
    task: Annotated[Literal["classes", "numbers"], _about("what the label is; classes are numbered 0, 1, ...")] = (
        "classes"
    )


class Npz(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="npz"):
    """NumPy's .npz archive: a matrix of features, a vector of labels, and one of clients."""

    path: Annotated[Text, _about("the file, seen from the configuration's folder")]
    features: Annotated[Text, _about("the array of features, one row an example")] = "x"
    label: Annotated[Text, _about("the array of labels")] = "y"
    client: Annotated[Text | None, _about("the array that tells whose row it is; else see [clients]")] = None
    task: Annotated[Literal["classes", "numbers"], _about("what the label is; classes are numbered 0, 1, ...")] = (
        "classes"
    )


class Libsvm(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="libsvm"):
    """A file in LIBSVM's format, plain, .gz or .bz2; split it among clients with [clients]."""

    path: Annotated[Text, _about("the file, seen from the configuration's folder")]
    width: Annotated[Whole | None, _about("how many features there are; else the largest index")] = None
    standardise: Annotated[bool, _about("scale features to mean 0 and deviation 1 over the training rows")] = False
    task: Annotated[Literal["classes", "numbers"], _about("what the label is; classes are numbered 0, 1, ...")] = (
        "classes"
    )


class Digits(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="digits"):
    """The 1797 handwritten digits that come with scikit-learn; split them among clients with [clients]."""


class Synthetic(RowsSection, frozen=True, kw_only=True, tag_field="kind", tag="synthetic"):
    """LEAF's synthetic(alpha, beta): classes by a linear model that differs from client to client."""

    clients: Annotated[Whole, _about("how many")] = 30
    dimension: Annotated[Whole, _about("features")] = 60
    classes: Annotated[int, Meta(ge=2), _about("labels")] = 10
    alpha: Annotated[NotNegative, _about("how much the clients' models differ")] = 0.5
    beta: Annotated[NotNegative, _about("how much their features differ")] = 0.5
    seed: Annotated[Natural, _about("which draw of clients")] = 0


class Leaf(Struct, frozen=True, kw_only=True, tag_field="kind", tag="leaf"):
    """LEAF's JSON, one shard or a folder of them, with numbers as features; its users are the clients."""

    path: Annotated[Text, _about("file or folder, seen from the configuration's folder")]
    test: Annotated[Share, _about("share of every client's rows that is held out to test on")] = 0.2


class FemnistSection(Struct, frozen=True, kw_only=True, tag_field="kind", tag="femnist"):
    """Handwritten characters of 184 writers, bytes of 28 x 28, with the test rows that come with them."""

    folder: Annotated[str | None, _about("where the data sets lie; else $FEDSPAM_DATA, ./data")] = None


DATA: Mapping[str, type[Struct]] = {
    "csv": Csv,
    "npz": Npz,
    "libsvm": Libsvm,
    "leaf": Leaf,
    "femnist": FemnistSection,
    "digits": Digits,
    "synthetic": Synthetic,
    "quadratics": QuadraticsSection,
    "random_ridge": RidgeSection,
    "problem": ProblemSection,
}


class Clients(Struct, frozen=True, kw_only=True):
    """Who owns which row where the data does not tell, and how a client looks at its rows."""

    split: Annotated[
        Literal["iid", "dirichlet", "shards"] | None, _about("how rows without a client column are dealt out")
    ] = None
    count: Annotated[Whole, _about("clients to deal them out to")] = 10
    alpha: Annotated[Positive, _about("dirichlet: evenness; 100 is nearly even, 0.1 very uneven")] = 1.0
    each: Annotated[Whole, _about("shards: classes a client sees, about")] = 2
    least: Annotated[Whole, _about("dirichlet: rows that every client must have")] = 5
    seed: Annotated[Natural, _about("which split")] = 0
    batch: Annotated[Whole | None, _about("rows in a minibatch; else all of a client's rows")] = None
    weighted: Annotated[bool, _about("clients count by their number of rows instead of equally")] = False


# --- [model]: what is learnt -----------------------------------------------------------------------------------------


class Function(Struct, frozen=True, kw_only=True):
    """A loss of one's own: (params, rows) -> one loss a row, in a Python file that is run."""

    function: Annotated[
        str, Meta(pattern=r"^.+\.py:[A-Za-z_]\w*$"), _about("file and name of the loss: my_model.py:loss")
    ]


class Logistic(Struct, frozen=True, kw_only=True, tag_field="name", tag="logistic"):
    """Logistic regression: labels of two values."""

    regularization: Annotated[NotNegative, _about("weight of the quadratic penalty")] = 1e-3
    bias: Annotated[bool, _about("whether there is one")] = True


class Softmax(Struct, frozen=True, kw_only=True, tag_field="name", tag="softmax"):
    """Softmax regression: any number of classes."""

    regularization: Annotated[NotNegative, _about("weight of the quadratic penalty")] = 1e-3
    bias: Annotated[bool, _about("whether there is one")] = True


class LinearSection(Struct, frozen=True, kw_only=True, tag_field="name", tag="linear"):
    """Least squares: labels that are numbers."""

    regularization: Annotated[NotNegative, _about("weight of the quadratic penalty")] = 1e-3
    bias: Annotated[bool, _about("whether there is one")] = True


class Mlp(Struct, frozen=True, kw_only=True, tag_field="name", tag="mlp"):
    """Dense layers with ReLU between them: any number of classes."""

    hidden: Annotated[list[Whole], _about("widths of the hidden layers")] = field(default_factory=lambda: [64])


class FemnistCnn(Struct, frozen=True, kw_only=True, tag_field="name", tag="femnist_cnn"):
    """The CNN of Reddi et al. for images of 28 x 28."""


class LeafCnn(Struct, frozen=True, kw_only=True, tag_field="name", tag="leaf_cnn"):
    """The CNN of LEAF for images of 28 x 28."""

    hidden: Annotated[Whole, _about("width of the dense layer")] = 256


MODELS: Mapping[str, type[Struct]] = {
    "logistic": Logistic,
    "softmax": Softmax,
    "linear": LinearSection,
    "mlp": Mlp,
    "femnist_cnn": FemnistCnn,
    "leaf_cnn": LeafCnn,
}


# --- how it is run, looked at and told -------------------------------------------------------------------------------


class RunSection(Struct, frozen=True, kw_only=True):
    """How long, with which randomness, and what is kept."""

    rounds: Annotated[Whole, _about("how many")] = 100
    seed: Annotated[Natural, _about("draws of cohorts, minibatches and first parameters")] = 0
    precision: Annotated[Literal["float32", "float64"], _about("of all numbers")] = "float32"
    record: Annotated[list[Text] | None, _about("info of the method to keep a row of each round; else all")] = None
    segment: Annotated[Whole, _about("rounds between two checkpoints and looks at the progress")] = 50
    keep: Annotated[Whole, _about("checkpoints that stay")] = 2
    chunk: Annotated[Whole | None, _about("clients of a cohort side by side; else chosen")] = None
    quorum: Annotated[float, Meta(ge=0, le=1), _about("share of a cohort that must answer")] = 0.0
    growth: Annotated[NotNegative, _about("stop when the loss has grown this many times; 0 never stops")] = 1e6


class Evaluate(Struct, frozen=True, kw_only=True):
    """What is looked at while it runs."""

    every: Annotated[Whole, _about("rounds between two looks; a look is one pass over all rows")] = 1
    metric: Annotated[
        Literal["loss", "gradient", "accuracy"] | None,
        _about("what the target is of; else accuracy, if it is known, or loss"),
    ] = None
    target: Annotated[float | None, _about("level to reach; what was paid until then is told")] = None
    stop: Annotated[bool, _about("end the run where the target is reached")] = False


class Track(Struct, frozen=True, kw_only=True):
    """Where curves go besides the run folder."""

    to: Annotated[
        list[Literal["tensorboard", "mlflow", "wandb", "trackio"]], _about("one or several; each needs its extra")
    ] = field(default_factory=list)
    project: Annotated[Text, _about("MLflow's experiment, W&B's and trackio's project")] = "fedspam"
    name: Annotated[Text | None, _about("of the run; else the name of its folder")] = None
    place: Annotated[Text | None, _about("TensorBoard's folder or MLflow's address; else the run folder")] = None


class Config(Struct, frozen=True, kw_only=True):
    """A whole experiment, resolved: every setting has its value.

    Arguments:
        algorithm: its ``name`` in `fedspam.methods.METHODS`, and the arguments of its constructor.
        prox: the ``name`` of a local solver and its arguments; None for the method's own choice.
    """

    data: Any
    clients: Clients
    model: Any
    algorithm: Struct
    prox: Struct | None
    run: RunSection
    evaluate: Evaluate
    track: Track
