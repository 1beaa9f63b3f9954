"""Writes the works of a method to a file, for clients without JAX (``fedspam_client``).

The file is data: the schema, and for each exchange the operations that JAX traced, with the codecs of message and
reply. So every method, solver and codec runs on such a client, and its numbers are those of a client with JAX.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive
from jax.interpreters import ad
from jaxtyping import Array, Integer, Key

from fedspam import __version__
from fedspam._internal import checks, files, prng, trees
from fedspam._internal.packing import Floats
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import parted
from fedspam.federation import perform, works_of
from fedspam.federation.codecs import Codecs, CodecsLike
from fedspam.federation.codecs.fields import in_order
from fedspam.federation.codecs.payload import parts
from fedspam.federation.ledger import Exchange
from fedspam.flower.wire.envelope import LONE
from fedspam.flower.wire.schema import Schema

FORMAT = 1  # of the file
# calls of a traced function inside another: their operations stand in the program of the caller
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
         "custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call", "checkpoint": "jaxpr"}  # fmt: skip


def export_works(
    path: str | Path, method: Any, params: Params, *, codecs: CodecsLike | Codecs | None = None,
    batch: int | None = None,
) -> None:  # fmt: skip
    """Write what a client without JAX needs to know of a method.

    Arguments:
        path: the file to write. Put it beside the ``client_app.py`` of the Flower app and let its name end in
            ``.json``: Flower sends no other data with an app.
        method, params, codecs: the same as on the server.
        batch: rows in a minibatch, where clients draw minibatches.

    >>> import tempfile, jax.numpy as jnp
    >>> from fedspam import spam_pp
    >>> path = Path(tempfile.mkdtemp()) / "spam_pp.works"
    >>> export_works(path, spam_pp(2, step_size=0.5, fresh_weight=0.2), jnp.zeros(3))
    >>> path.stat().st_size < 64_000
    True
    """
    if batch is not None:
        checks.whole("batch", batch, 1)
    params, codecs = jax.tree.map(jnp.asarray, params), Codecs.of(codecs)
    schema, constants = Schema.of(method, params, codecs), _Constants()
    first = jax.tree.map(jnp.asarray, codecs.memory(method.client_state(params), schema.plan))
    tracer = _Tracer(method, codecs, first, TracedClient(batch), constants)
    exchanges = {
        f"{phase} {exchange.label}": {
            **tracer.described(exchange),
            "kept": sorted(schema.kept(phase)),
            "stateful": exchange.work in schema.stateful,
        }
        for phase, plan in (("start", schema.plan.start), ("round", schema.plan.round))
        for exchange in plan
    }
    facts = {
        "format": FORMAT,
        "fedspam": __version__,
        "schema": schema.digest,
        "description": schema.description,
        "params": [{**entry, "name": entry["name"] or LONE} for entry in _listed(params)],
        "memory": _listed({"memory": first}),
        "exchanges": exchanges,
    }
    memory = {entry["name"]: leaf for entry, leaf in zip(facts["memory"], jax.tree.leaves(first), strict=True)}
    arrays = {name: np.asarray(value, order="C") for name, value in {**constants.arrays, **memory}.items()}
    data = safetensors.numpy.save(arrays, {"works": json.dumps(facts, allow_nan=False)})
    if Path(path).suffix == ".json":
        data = json.dumps({"safetensors": base64.b64encode(data).decode()}).encode()
    files.write(Path(path), data)


@dataclass(frozen=True)
class _Tracer:
    """Makes the programs of exchanges, on named arrays as they travel."""

    method: Any
    codecs: Codecs
    first: Any  # the memory of a client before the first exchange
    client: "TracedClient"
    constants: "_Constants"

    def described(self, exchange: Exchange) -> dict[str, Any]:
        return {
            "work": exchange.work,
            "label": exchange.label,
            "message": _listed(dict(exchange.message)),
            "part": self._message(exchange, exchange.sent),
            "whole": self._message(exchange, exchange.message),
            **self._answer(exchange),
        }

    def _answer(self, exchange: Exchange) -> dict[str, Any]:
        """The reply's arrays as they travel, and the program that makes their sections and the new memory."""
        work, codecs = works_of(self.method)[exchange.work], self.codecs

        def answer(client: Any, words: Any, memory: Any, fields: Any) -> Any:
            own_key = jax.random.fold_in(jax.random.wrap_key_data(words), client)
            reply, after = perform(work, self.client, own_key, memory, fields, codecs)
            up = prng.fold_name(own_key, "up")

            def encode(name: str, leaf: Any, codec: Any, near: Any) -> Any:
                if codec is None:
                    return leaf
                return parts(codec, prng.fold_name(up, name), leaf if near is None else leaf - near[0])

            return codecs.of_reply(exchange.work, fields).each(reply, encode), after

        like = codecs.of_reply(exchange.work, {}).each(exchange.reply, _sectioned)
        words = jax.ShapeDtypeStruct((2,), jnp.uint32)
        program = self._traced(answer, jax.ShapeDtypeStruct((), jnp.uint32), words, self.first, dict(exchange.message))
        return {"reply": _on_the_wire({"reply": like}, exchange.answer), "answer": program}

    def _message(self, exchange: Exchange, sent: Mapping[str, Any]) -> dict[str, Any]:
        """A message's arrays as they travel, and the program that decodes them if any of them is coded."""
        like = {}
        for name, field in sent.items():
            like |= self.codecs.of_field(name, {}, {}).each({name: field}, _sectioned)
        wire = _on_the_wire(like, exchange.ask(whole=sent is exchange.message))
        if not any("sections" in entry for entry in wire):
            return {"arrays": wire}
        held = {name: field for name, field in exchange.message.items() if name not in sent}

        def decode(coded: Mapping[str, Any], held: Mapping[str, Any]) -> Any:
            arrived = dict(held)
            for name in in_order(sent):
                coding = self.codecs.of_field(name, exchange.message, arrived)
                leaves, structure = coding.leaves({name: sent[name]})
                values = []
                for found, (_, leaf, codec, near) in zip(coded[name], leaves, strict=True):
                    value = found[0] if codec is None else codec.values(tuple(found), leaf)
                    values.append(value if near is None else near[1] + value)
                arrived |= jax.tree.unflatten(structure, values)
            return {name: arrived[name] for name in sent}

        coded = {name: [_abstract(leaf) for leaf in jax.tree.leaves(like[name])] for name in sent}
        return {"arrays": wire, "decode": self._traced(decode, coded, held), "decoded": _listed(dict(sent))}

    def _traced(self, function: Any, *arguments: Any) -> dict[str, Any]:
        closed = jax.make_jaxpr(function)(*arguments)
        return _program(closed.jaxpr, self.constants.of(closed.consts), self.constants)


@dataclass(frozen=True)
class _Sections:
    """In place of a coded array: the sections of its payload."""

    layout: Any


def _sectioned(name: str, leaf: Any, codec: Any, near: Any) -> Any:
    return leaf if codec is None else _Sections(codec.layout(leaf))


def _abstract(leaf: Any) -> list[jax.ShapeDtypeStruct]:
    """The arrays that stand for one array as it travels: its sections, or itself."""
    if not isinstance(leaf, _Sections):
        return [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))]
    dtype = lambda part: np.dtype(part.dtype) if isinstance(part, Floats) else np.dtype(np.uint32)
    return [jax.ShapeDtypeStruct((part.length,), dtype(part)) for part in leaf.layout]


def _on_the_wire(like: Any, due: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, dtype, shape and sections of every array; `due` has the arrays that travel beside them too."""
    sections = dict(zip(trees.names(like), jax.tree.leaves(like), strict=True))
    listed = _listed(dict(due))
    for entry in listed:
        leaf = sections.get(entry["name"])
        if isinstance(leaf, _Sections):
            entry["sections"] = [
                {"floats": np.dtype(part.dtype).name, "length": part.length,
                 "least": part.least if math.isfinite(part.least) else None}
                if isinstance(part, Floats)
                else {"bits": part.bits, "length": part.length, "largest": part.largest, "increasing": part.increasing}
                for part in leaf.layout
            ]  # fmt: skip
    return listed


def _listed(tree: Any) -> list[dict[str, Any]]:
    """Name, dtype and shape of every array, in the order of the tree."""
    leaves = zip(trees.names(tree), jax.tree.leaves(tree), strict=True)
    return [
        {"name": name, "dtype": str(jnp.result_type(leaf)), "shape": list(jnp.shape(leaf))} for name, leaf in leaves
    ]


class _Constants:
    """The constants of all programs by name, each kept once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[Any, str] = {}

    def of(self, values: Sequence[Any]) -> list[str]:
        return [self.name(value) for value in values]

    def name(self, value: Any) -> str:
        if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
            raise ValueError("a work holds a random key of its own; make it from the key that the work is given")
        array = np.asarray(value)
        mark = (str(array.dtype), array.shape, array.tobytes())
        if mark not in self._names:
            self._names[mark] = f"c{len(self._names)}"
            self.arrays[self._names[mark]] = array
        return self._names[mark]


def _program(jaxpr: Jaxpr, consts: Sequence[str], constants: _Constants) -> dict[str, Any]:
    """A jaxpr as data; its constants have names."""
    steps: list[dict[str, Any]] = []
    places: dict[Any, int | str] = dict(zip(jaxpr.constvars, consts, strict=True))
    places |= {variable: number for number, variable in enumerate(jaxpr.invars)}
    counter = iter(range(len(jaxpr.invars), 2**31))

    def place(atom: Any, places: Mapping[Any, int | str]) -> int | str:
        return constants.name(np.asarray(atom.val, _aval(atom).dtype)) if isinstance(atom, Literal) else places[atom]

    def emit(jaxpr: Jaxpr, places: dict[Any, int | str]) -> list[int | str]:
        for equation in jaxpr.eqns:
            name, takes = equation.primitive.name, [place(atom, places) for atom in equation.invars]
            if name in CALLS:
                inner: ClosedJaxpr = equation.params[CALLS[name]]
                known: dict[Any, int | str] = dict(zip(inner.jaxpr.constvars, constants.of(inner.consts), strict=True))
                known |= dict(zip(inner.jaxpr.invars, takes, strict=True))
                places |= dict(zip(equation.outvars, emit(inner.jaxpr, known), strict=True))
                continue
            makes = [next(counter) for _ in equation.outvars]
            places |= dict(zip(equation.outvars, makes, strict=True))
            dtypes = [_dtype(_aval(variable).dtype) for variable in equation.outvars]
            steps.append({"do": name, "in": takes, "out": makes, "dtypes": dtypes, **_settings(equation, constants)})
        return [place(atom, places) for atom in jaxpr.outvars]

    outputs = emit(jaxpr, places)
    return {"inputs": len(jaxpr.invars), "steps": steps, "outputs": outputs}


def _settings(equation: Any, constants: _Constants) -> dict[str, Any]:
    """The settings of an operation, and the programs inside it."""
    name, given = equation.primitive.name, equation.params
    inside = lambda closed: _program(closed.jaxpr, constants.of(closed.consts), constants)
    match name:
        case "while":
            settings = {"test_consts": given["cond_nconsts"], "body_consts": given["body_nconsts"]}
            programs = {"test": inside(given["cond_jaxpr"]), "body": inside(given["body_jaxpr"])}
            return {"with": settings, "programs": programs}
        case "scan":
            settings = {"consts": given["num_consts"], "carry": given["num_carry"], "length": given["length"],
                        "reverse": given["reverse"]}  # fmt: skip
            return {"with": settings, "programs": {"body": inside(given["jaxpr"])}}
        case "cond":
            return {"programs": {str(number): inside(branch) for number, branch in enumerate(given["branches"])}}
    if name not in OPERATIONS or not _is_simple(equation):
        raise ValueError(
            f"a work of this method uses the operation {name!r}, which clients without JAX do not know; use another "
            "solver or codec, or clients with JAX"
        )
    if name == "round":
        return {"with": {"to_even": given["rounding_method"].name == "TO_NEAREST_EVEN"}}
    found = {setting: _plain(given[setting]) for setting in OPERATIONS[name] if setting in given}
    return {"with": found} if found else {}


def _is_simple(equation: Any) -> bool:
    """Whether places are looked up in a vector, one by one; other forms of indexing are not known to clients."""
    given = equation.params
    match equation.primitive.name:
        case "gather":
            fills = given["mode"].name == "FILL_OR_DROP" or given["slice_sizes"] != (1,)
            return not fills and given["dimension_numbers"].collapsed_slice_dims == (0,)
        case "scatter":
            return equation.invars[0].aval.ndim == 1 and given["dimension_numbers"].inserted_window_dims == (0,)
    return True


# The operations that clients without JAX know, with the settings that they need; `fedspam_client.operations` does them.
# Loops are not among them: their settings are programs.
OPERATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "abs", "add", "add_any", "and", "ceil", "clamp", "clz", "copy", "copy_p", "cos", "div",
            "dynamic_update_slice", "eq", "exp", "exp2", "expm1", "floor", "gather", "ge", "gt", "is_finite", "le",
            "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "optimization_barrier", "or",
            "pow", "random_fold_in", "random_unwrap", "random_wrap", "rem", "round", "rsqrt", "scatter", "select_n",
            "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sqrt", "square", "sub",
            "tanh", "xor", "client_solve",
        ),
        (),
    ),
    **dict.fromkeys(("client_loss", "client_gradient", "client_hessian"), ("seeded", "numbered")),
    "client_fact": ("name",),
    "argmax": ("axes",), "argmin": ("axes",), "bitcast_convert_type": ("new_dtype",),
    "broadcast_in_dim": ("shape", "broadcast_dimensions"), "concatenate": ("dimension",),
    "convert_element_type": ("new_dtype",), "cumsum": ("axis", "reverse"), "dot_general": ("dimension_numbers",),
    "dynamic_slice": ("slice_sizes",), "integer_pow": ("y",), "iota": ("shape", "dimension"),
    "pad": ("padding_config",), "random_bits": ("shape", "bit_width"), "random_split": ("shape",),
    **{f"reduce_{name}": ("axes",) for name in ("and", "max", "min", "or", "prod", "sum")},
    "reshape": ("new_sizes",), "rev": ("dimensions",),
    "slice": ("start_indices", "limit_indices", "strides"), "sort": ("dimension", "num_keys"),
    "split": ("sizes", "axis"), "squeeze": ("dimensions",), "stack": ("axis",), "svd": ("full_matrices",),
    "top_k": ("k",), "transpose": ("permutation",),
}  # fmt: skip


def _plain(value: Any) -> Any:
    """A setting as JSON."""
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, np.dtype):
        return value.name
    return value if isinstance(value, bool | str) or value is None else int(value)


def _aval(atom: Any) -> Any:
    """Shape and dtype of what a variable of a jaxpr stands for."""
    return atom.aval


def _dtype(dtype: Any) -> str:
    """The name of a dtype; a key is one number of 64 bits."""
    return "uint64" if jnp.issubdtype(dtype, jax.dtypes.prng_key) else np.dtype(dtype).name


# A client that exists only while a work is traced: each question to it becomes one operation of the program.
# `fedspam_client.program` says what the operations mean.
loss_p, gradient_p, hessian_p, solve_p, fact_p = (
    Primitive(f"client_{name}") for name in ("loss", "gradient", "hessian", "solve", "fact")
)
gradient_p.multiple_results = hessian_p.multiple_results = solve_p.multiple_results = True


def _shapes(arrays: Any) -> list[ShapedArray]:
    return [ShapedArray(array.shape, array.dtype) for array in arrays]


def _count(arguments: Any, seeded: bool, numbered: bool) -> int:
    """How many of the arguments are not the key and the number of the minibatch."""
    return len(arguments) - seeded - numbered


def _scalar_like(array: Any) -> ShapedArray:
    return ShapedArray((), array.dtype)


loss_p.def_abstract_eval(lambda *arrays, seeded, numbered: _scalar_like(arrays[0]))
gradient_p.def_abstract_eval(
    lambda *arrays, seeded, numbered: [_scalar_like(arrays[0]), *_shapes(arrays[: _count(arrays, seeded, numbered)])]
)
hessian_p.def_abstract_eval(lambda *arrays, seeded, numbered: _shapes(arrays[: _count(arrays, seeded, numbered) // 2]))
solve_p.def_abstract_eval(lambda *arrays: _shapes(arrays[:-1]))
fact_p.def_abstract_eval(lambda *, name, dtype: ShapedArray((), jnp.dtype(dtype)))


def _gradient_jvp(primals: Any, tangents: Any, *, seeded: bool, numbered: bool) -> Any:
    """The derivative of a gradient along a direction is the Hessian times the direction."""
    count, options = _count(primals, seeded, numbered), {"seeded": seeded, "numbered": numbered}
    found = gradient_p.bind(*primals, **options)
    along = [ad.instantiate_zeros(tangent) for tangent in tangents[:count]]
    bent = hessian_p.bind(*primals[:count], *along, *primals[count:], **options)
    slope = sum((jnp.vdot(part, way) for part, way in zip(found[1:], along, strict=True)), jnp.zeros_like(found[0]))
    return found, [slope, *bent]


ad.primitive_jvps[gradient_p] = _gradient_jvp


@struct
class TracedClient:
    """The oracle of a client about which nothing is known yet.

    Arguments:
        batch: rows in a minibatch, where clients draw minibatches.
    """

    batch: int | None = static(default=None)

    @property
    def capacity(self) -> int | None:
        return None if self.batch is None else self.batch + 1  # more rows than a minibatch has

    @property
    def weight(self) -> Scalar:
        return self._fact("weight")

    @property
    def smoothness(self) -> Scalar:
        return self._fact("smoothness")

    @property
    def lowest_curvature(self) -> Scalar:
        return self._fact("lowest_curvature")

    @property
    def minibatches(self) -> Integer[Array, ""]:
        return fact_p.bind(name="minibatches", dtype="int32")

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar:
        return _asked(params) if key is None else _asked(params, key)

    def minibatch(self, params: Params, key: Key[Array, ""], number: Integer[Array, ""]) -> Scalar:
        return _asked(params, key, number)

    def shifted_solve(self, g: Params, step_size: Any) -> Params:
        leaves, structure = jax.tree.flatten(g)
        return jax.tree.unflatten(structure, solve_p.bind(*leaves, jnp.asarray(step_size)))

    def _fact(self, name: str) -> Scalar:
        return fact_p.bind(name=name, dtype=str(jnp.result_type(float)))


def _asked(params: Params, *minibatch: Any) -> Scalar:
    if parted(params)[1] is not None:
        raise ValueError("sites without JAX keep no running statistics; give the module's normalization='group'")
    options = {"seeded": len(minibatch) > 0, "numbered": len(minibatch) > 1}

    @jax.custom_vjp
    def loss(leaves: list[Any]) -> Scalar:
        return loss_p.bind(*leaves, *minibatch, **options)

    def forward(leaves: list[Any]) -> tuple[Scalar, list[Any]]:
        value, *gradient = gradient_p.bind(*leaves, *minibatch, **options)
        return value, gradient

    loss.defvjp(forward, lambda gradient, cotangent: ([cotangent * leaf for leaf in gradient],))
    return loss(jax.tree.leaves(params))
