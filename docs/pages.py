"""What the site adds to the files of docs/: a page for every method, formulas as MathML, and the files of the root.

MkDocs calls these functions (see `hooks` in mkdocs.yml). Formulas become MathML as the site is built: browsers draw it
themselves, so a page needs neither a script nor a font from elsewhere.
"""

import html
import logging
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedspam.federation import ledger
from fedspam.methods import METHODS, Method, table
from fedspam.problems import quadratics

log = logging.getLogger("mkdocs.hooks.pages")  # a warning ends a strict build
ROOT = Path(__file__).parents[1]
KEYS = table.ordered_keys()
COPIED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
WIDE = ("methods.md", "comparison.md")  # tables that need the room beside them
CLIENTS, DIMENSION = 40, 100
FACTS = (
    ("similarity", "gains from alike clients"),
    ("partial", "a cohort of some clients suffices"),
    ("stateless", "clients remember nothing"),
    ("nonsmooth", "losses need not be smooth"),
    ("nonconvex", "losses need not be convex"),
)
SPELLINGS = {"{aligned}": "{align*}", r"\arg\min": r"\operatorname{arg}\min"}  # as the converter knows them
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The methods' pages enter the navigation."""
    for entry in config.nav or []:
        if "Methods" in entry:
            entry["Methods"] += [{METHODS[key].name: f"methods/{key}.md"} for key in KEYS]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that are made rather than written."""
    for name, page in COPIED.items():
        files.append(File.generated(config, page, content=within((ROOT / name).read_text(), "docs/")))
    clients = quadratics(0, clients=CLIENTS, dimension=DIMENSION)
    primary: set[str] = set()
    for key in KEYS:
        name = METHODS[key].build.__name__
        files.append(
            File.generated(config, f"methods/{key}.md", content=method_page(key, clients, name not in primary))
        )
        primary.add(name)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that are right in the repository become right on the site."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri == "methods.md":
        return re.sub(r"^\| `(\w+)` \|", r"| [`\1`](methods/\1.md) |", markdown, flags=re.MULTILINE)
    return within(markdown, "../") if "/" not in page.file.src_uri else markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML."""

    def mathml(found: re.Match[str]) -> str:
        text = " ".join(html.unescape(found[2]).split())  # the converter does not read a space at the end of a line
        for usual, known in SPELLINGS.items():
            text = text.replace(usual, known)
        drawn = convert(text, display="block" if found[1] == "div" else "inline")
        if re.search(r"<m[ion]>(&<|[^<]*\\)", drawn):  # what it does not know it shows as it is
            log.warning(f"{page.file.src_uri}: this formula cannot be drawn: {text}")
        return f'<{found[1]} class="formula">{drawn}</{found[1]}>'

    return FORMULA.sub(mathml, content)


def within(markdown: str, prefix: str) -> str:
    """Links to files of the repository: to their pages on the site, or, where they have none, their text alone."""

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if prefix == "docs/" and target.startswith(prefix):
            return f"[{text}]({target.removeprefix(prefix)})"
        name = target.removeprefix("../")
        if prefix == "../" and name == target:
            return found[0]
        pages = COPIED | {"README.md": "index.md"}
        return f"[{text}]({pages[name]})" if name in pages else text

    return re.sub(r"(?<!!)\[([^\]\n]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)", link, markdown)


def method_page(key: str, clients: Any, primary: bool) -> str:
    """One method: its facts, its docstring with the formula, and what the ledger says of a round."""
    row = METHODS[key]
    told = {
        "key": f"`{key}`, for `fedspam run`, `fedspam compare` and `METHODS`",
        "constructor": f"`fedspam.methods.{row.build.__name__}`",
        "estimate of the gradient": row.estimator,
        "what a client does": row.oracle,
        "trips to clients in a round": str(row.phases),
        "floats down, a client": f"{row.down}",
        "floats up, a client": f"{row.up}",
        **{told: table.SIGNS[getattr(row, fact)] for fact, told in FACTS},
        "reference": re.sub(r"arXiv:(\d\S*\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", row.reference),
    }
    lines = [f"| {name} | {fact} |" for name, fact in told.items()]
    return "\n".join(
        [
            f"# {row.name}",
            "",
            *variant(key, row),
            *docstring(path_of(row.build), primary),
            *formula_of(row),
            "## Facts",
            "",
            "| | |",
            "|---|---|",
            *lines,
            "",
            "`d` is the number of parameters; in brackets what the one client that moves alone takes besides.",
            "What theory covers: ✓ yes, (✓) in part, – no. [All methods](../methods.md) side by side.",
            "",
            *cost(row, clients),
        ]
    )


def variant(key: str, row: Method) -> list[str]:
    """Where several methods share a constructor, what makes this one."""
    if key == row.build.__name__:
        return []
    shared = [other for other in KEYS if METHODS[other].build is row.build and other != key]
    links = ", ".join(f"[{METHODS[other].name}]({other}.md)" for other in shared)
    return [f"One setting of `{row.build.__name__}`, which also makes {links}. As it is tested:", "", *call(row), ""]


def call(row: Method) -> list[str]:
    settings = [f"    {name}={value!r}," for name, value in row.example.items()]
    return ["```python", f"{row.build.__name__}(", *settings, ")", "```"]


def docstring(path: str, primary: bool, members: bool = True) -> list[str]:
    """The docstring; only one page a constructor is where links to it lead."""
    options = [
        "heading_level: 2",
        "show_symbol_type_heading: false",
        f"skip_local_inventory: {str(not primary).lower()}",
    ]
    options += [] if members else ["members: false"]
    return [f"::: {path}", "    options:", *(f"      {option}" for option in options), ""]


def path_of(named: Any) -> str:
    """Where it is defined; the shorter name of a constructor may be that of its module, too."""
    return f"{named.__module__}.{named.__qualname__}"


def formula_of(row: Method) -> list[str]:
    """The docstring of the class behind the constructor, where the formula stands there."""
    made = type(row.make())
    if ".. math::" in (row.build.__doc__ or "") or "math:" not in (made.__doc__ or ""):
        return []
    return docstring(path_of(made), primary=False, members=False)


def cost(row: Method, clients: Any) -> list[str]:
    """The exchanges of the start and of one round, as the ledger prices them."""
    plan = ledger.plan(row.make(), jnp.zeros(DIMENSION, jnp.float32), clients)
    lines = [
        "## What a round sends",
        "",
        f"As the [ledger](../reference/federation.md) has it, with d = {DIMENSION} in float32, {CLIENTS} clients and",
        "",
        *call(row),
        "",
        "| exchange | clients asked | floats down, each | floats up, each | bytes down, each | bytes up, each |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for where, exchanges in (("start: ", plan.start), ("", plan.round)):
        for one in exchanges:
            label, _, side = one.label.partition("@")
            coin = {"yes": ", if the coin says so", "no": ", else"}.get(side, "")
            floats = f"{in_d(one.floats_down)} | {in_d(one.floats_up)}"
            asked = f"all {CLIENTS}" if one.cohort == CLIENTS else str(one.cohort)
            lines.append(f"| {where}`{label}`{coin} | {asked} | {floats} | {one.bytes_down} | {one.bytes_up} |")
    return [*lines, ""]


def in_d(floats: int) -> str:
    """A number of floats in multiples of d: 196 is d + 96."""
    many, rest = divmod(floats, DIMENSION)
    whole = {0: "", 1: "d"}.get(many, f"{many}d")
    return " + ".join(part for part in (whole, str(rest) if rest else "") if part) or "0"
