"""Pages that the site adds to the files of docs/: one per method and notebook, and those from the root, as CHANGELOG.

ProperDocs calls these functions (see `hooks` in mkdocs.yml). Formulas become MathML when the site is built. Browsers
draw MathML themselves, so a page needs neither a script nor a font from another host.
"""

import base64
import hashlib
import html
import inspect
import json
import logging
import os
import pydoc
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from latex2mathml.converter import convert
from properdocs.config.defaults import ProperDocsConfig
from properdocs.exceptions import PluginError
from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page

import fedspam
from fedspam.federation import ledger
from fedspam.methods import METHODS, Entry, table
from fedspam.methods.when import FAMILIES, WHEN
from fedspam.problems import quadratics

log = logging.getLogger("properdocs.hooks.pages")  # a warning fails a strict build
ROOT = Path(__file__).parents[1]
KEYS = table.ordered_keys()
COPIED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "research/auto/README.md": "auto-results.md",
}
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
KEPT = ROOT / ".cache" / "notebooks"  # what they showed when they last ran
MARKDOWN: dict[str, tuple[str, str]] = {}  # title and text of every page of this build
WIDE = ("comparison.md", "tables.md")  # pages with wide tables: without a table of contents beside them
CLIENTS, DIMENSION = 40, 100
SPELLINGS = {"{aligned}": "{align*}", r"\arg\min": r"\operatorname{arg}\min"}  # as the converter spells them
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Add the pages of the methods to the navigation, the version, and the link to the repository."""
    config.copyright = f"fedspam {fedspam.__version__} · {config.copyright}"
    config.repo_url = config.repo_url or repository()
    if config.repo_url and not config.repo_name:
        config.repo_name = "/".join(config.repo_url.split("/")[-2:])
    for entry in config.nav or []:
        if "Methods" in entry:
            entry["Methods"] += [
                {title: [{METHODS[key].name: f"methods/{key}.md"} for key in keys if key in METHODS]}
                for title, (_, keys) in FAMILIES.items()
            ]
    return config


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add the generated pages."""
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
    add_notebooks(files, config)
    return files


def add_notebooks(files: Files, config: ProperDocsConfig) -> None:
    """Run every notebook, and add its page, its figures, and the notebook itself with the outputs."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for source, text in zip(NOTEBOOKS, pool.map(executed, NOTEBOOKS), strict=True):
            name = source.stem
            page, pictures = notebook_page(name, json.loads(text))
            files.append(File.generated(config, f"notebooks/{name}.md", content=page))
            files.append(File.generated(config, f"notebooks/{name}.ipynb", content=to_take_away(text, config.repo_url)))
            for number, png in enumerate(pictures, 1):
                files.append(File.generated(config, f"notebooks/images/{name}-{number}.png", content=png))


def to_take_away(text: str, address: str | None) -> str:
    """The notebook that is downloaded. Where the repository has an address, its first cell installs fedspam."""
    if not address:
        return text
    installing = runpy.run_path(str(ROOT / "docs" / "notebook.py"))["installing"]
    return json.dumps(installing(json.loads(text), f"fedspam[data,flower,parquet] @ git+{address}"), indent=1)


def executed(source: Path) -> str:
    """The notebook with its outputs. It runs again if it or the package has changed since the last time."""
    sources = [source, ROOT / "docs" / "notebook.py", *sorted((ROOT / "src").rglob("*.py"))]
    kept = (
        KEPT / f"{source.stem}-{hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()[:16]}.ipynb"
    )
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        for old in KEPT.glob(f"{source.stem}-*"):
            old.unlink()
        made = kept.with_suffix(f".{os.getpid()}")
        command = [sys.executable, str(ROOT / "docs" / "notebook.py"), str(source), str(made)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode != 0:
            raise PluginError(f"{source.relative_to(ROOT)} does not run:\n{done.stderr}")
        made.replace(kept)
    return kept.read_text()


def notebook_page(name: str, notebook: dict[str, Any]) -> tuple[str, list[bytes]]:
    """A notebook as Markdown, and its figures."""
    lines, pictures = [], []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            lines += [cell["source"], ""]
            continue
        lines += ["```python", cell["source"], "```", ""]
        for output in cell["outputs"]:
            if png := output.get("data", {}).get("image/png"):
                pictures.append(base64.b64decode(png))
                lines += [f"![Figure {len(pictures)} of this notebook](images/{name}-{len(pictures)}.png)", ""]
            else:
                text = output.get("text") or output["data"]["text/plain"]
                lines += ["```text", text.rstrip("\n"), "```", ""]
    where = f"*[Download this page as a Jupyter notebook]({name}.ipynb), and run it where fedspam is installed.*"
    return "\n".join([*lines, where, ""]), pictures


def on_page_markdown(markdown: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri == "methods.md":
        markdown = re.sub(r"(\| method \|.*\n(?:\|.*\n)+)", r'<div class="methods" markdown>\n\n\1\n</div>\n', markdown)
    elif "/" not in page.file.src_uri:
        markdown = re.sub(r"\]\((notebooks/\w+)\.py\)", r"](\1.md)", within(markdown, "../"))
    keep_markdown(markdown, page)
    return markdown


def keep_markdown(markdown: str, page: Page) -> None:
    """Keep the Markdown of a page, with the docstrings that its directives name, for the file beside the page."""
    title = re.search(r"^# (.*)$", markdown, re.MULTILINE)
    text = re.sub(r"^::: (\S+)\n(?:(?: +.*)?\n)*", documented, markdown + "\n", flags=re.MULTILINE)
    MARKDOWN[page.file.src_uri] = (title[1] if title else page.file.name, text.strip() + "\n")


def documented(directive: re.Match[str]) -> str:
    """The docstring of what a directive of mkdocstrings names."""
    found = pydoc.locate(directive[1])
    return f"## `{directive[1]}`\n\n```text\n{inspect.getdoc(found) or ''}\n```\n\n"


def on_post_build(config: ProperDocsConfig) -> None:
    """Write the Markdown of every page beside it, and llms.txt, which lists all of them for programs that read."""
    site = Path(config.site_dir)
    for name, (_, text) in MARKDOWN.items():
        (site / name).write_text(text)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav or []:
        for title, pages in section.items():
            names = [name for name in names_of(pages) if name in MARKDOWN]
            lines += [f"## {title}", "", *(f"- [{MARKDOWN[name][0]}]({name})" for name in names), ""]
    (site / "llms.txt").write_text("\n".join(lines))


def names_of(pages: Any) -> list[str]:
    """The files of a part of the navigation, in its order."""
    if isinstance(pages, str):
        return [pages]
    parts = pages.values() if isinstance(pages, dict) else pages
    return [name for part in parts for name in names_of(part)]


def on_page_content(content: str, page: Page, config: ProperDocsConfig, files: Files) -> str:
    """Convert formulas to MathML."""

    def mathml(found: re.Match[str]) -> str:
        text = " ".join(html.unescape(found[2]).split())  # the converter does not read a space at the end of a line
        for usual, known in SPELLINGS.items():
            text = text.replace(usual, known)
        drawn = convert(text, display="block" if found[1] == "div" else "inline")
        if re.search(r"<m[ion]>(&<|[^<]*\\)", drawn):  # the converter copies commands that it does not know
            log.warning(f"{page.file.src_uri}: cannot draw the formula: {text}")
        return f'<{found[1]} class="formula">{drawn}</{found[1]}>'

    return paired(FORMULA.sub(mathml, content))


def on_post_page(output: str, page: Page, config: ProperDocsConfig) -> str:
    """Write the version beside the name in the head of the page."""
    name = rf'(<span class="md-ellipsis">\s*{config.site_name})(\s*</span>)'
    return re.sub(name, rf'\1 <small class="version">{fedspam.__version__}</small>\2', output, count=1)


def repository() -> str | None:
    """The web address of the repository that the site is built in, if it was cloned from one.

    `repo_url` in mkdocs.yml, or the variable FEDSPAM_REPOSITORY, wins.
    """
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except OSError:
        return None
    return web_address(found)


def web_address(remote: str) -> str | None:
    """The page of a remote: git@host:owner/name.git is https://host/owner/name; None for a folder."""
    match = re.fullmatch(r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?", remote)
    return f"https://{match[1]}/{match[2]}" if match else None


def paired(content: str) -> str:
    """Pictures of pages in the scheme of the reader, where there are two: report.png and report-dark.png."""

    def both(found: re.Match[str]) -> str:
        dark = found[2].replace(".png", "-dark.png")
        if "-dark" in found[2] or not (ROOT / "docs" / "images" / dark).exists():
            return found[0]
        again = found[0].replace(found[2], f"{dark}#only-dark")
        return found[0].replace(found[2], f"{found[2]}#only-light") + again

    return re.sub(r'<img [^>]*src="([^"]*images/)([\w-]+\.png)"[^>]*>', both, content)


def within(markdown: str, prefix: str) -> str:
    """Links to files of the repository become links to pages of the site, or plain text where there is no page."""

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
    """The page of one method: docstring with formula, facts, and the cost of a round from the ledger."""
    row = METHODS[key]
    facts = table.facts(key)
    facts["key"] = f"`{key}`, for `fedspam run`, `fedspam compare` and `METHODS`"
    facts["constructor"] = f"`{facts['constructor']}`"
    facts["reference"] = re.sub(r"arXiv:(\d\S*\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", row.reference)
    lines = [f"| {name} | {fact} |" for name, fact in facts.items()]
    return "\n".join(
        [
            f"# {row.name}",
            "",
            "## When to use it",
            "",
            re.sub(r"`(\w+)`", lambda name: f"[{name[0]}]({name[1]}.md)" if name[1] in METHODS else name[0], when(key)),
            "[How to choose](../choosing.md).",
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
            "`d` is the number of parameters. Numbers in brackets are extra floats of the one client that moves.",
            "Arguments that mean the same in all methods are explained [once](../reference/methods.md).",
            "Covered by theory: ✓ yes, (✓) partly, – no. Compare [all methods](../methods.md).",
            "",
            *cost(row, clients),
        ]
    )


def when(key: str) -> str:
    if key not in WHEN:
        log.warning(f"methods/when.py does not say when to use {key}; add a sentence or two")
    return WHEN.get(key, "")


def variant(key: str, row: Entry) -> list[str]:
    """The call that makes this method, if its constructor makes several."""
    if key == row.build.__name__:
        return []
    shared = [other for other in KEYS if METHODS[other].build is row.build and other != key]
    links = ", ".join(f"[{METHODS[other].name}]({other}.md)" for other in shared)
    return [f"A setting of `{row.build.__name__}`, which also makes {links}:", "", *call(row), ""]


def call(row: Entry) -> list[str]:
    settings = [f"    {name}={value!r}," for name, value in row.example.items()]
    return ["```python", f"{row.build.__name__}(", *settings, ")", "```"]


def docstring(path: str, primary: bool, members: bool = True) -> list[str]:
    """The docstring of a constructor. Links to the constructor lead to its primary page."""
    options = [
        "heading_level: 2",
        "show_symbol_type_heading: false",
        f"skip_local_inventory: {str(not primary).lower()}",
    ]
    options += [] if members else ["members: false"]
    return [f"::: {path}", "    options:", *(f"      {option}" for option in options), ""]


def path_of(named: Any) -> str:
    """The full path of an object. The short path of a constructor can be the path of its module."""
    return f"{named.__module__}.{named.__qualname__}"


def formula_of(row: Entry) -> list[str]:
    """The docstring of the method's class, if it has the formula and the constructor does not."""
    made = type(row.make())
    if ".. math::" in (row.build.__doc__ or "") or "math:" not in (made.__doc__ or ""):
        return []
    return docstring(path_of(made), primary=False, members=False)


def cost(row: Entry, clients: Any) -> list[str]:
    """The exchanges of the start and of one round, with their cost from the ledger."""
    plan = ledger.plan(row.make(), jnp.zeros(DIMENSION, jnp.float32), clients)
    lines = [
        "## What a round sends",
        "",
        f"Cost from the [ledger](../reference/federation.md), with d = {DIMENSION} in float32, {CLIENTS} clients and",
        "",
        *call(row),
        "",
        "| exchange | clients | floats down, each | floats up, each | bytes down, each | bytes up, each |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for where, exchanges in (("start: ", plan.start), ("", plan.round)):
        for one in exchanges:
            label, _, side = one.label.partition("@")
            coin = {"yes": ", in some rounds", "no": ", in the others"}.get(side, "")
            floats = f"{in_d(one.floats_down)} | {in_d(one.floats_up)}"
            count = f"all {CLIENTS}" if one.cohort == CLIENTS else str(one.cohort)
            lines.append(f"| {where}`{label}`{coin} | {count} | {floats} | {one.bytes_down} | {one.bytes_up} |")
    return [*lines, ""]


def in_d(floats: int) -> str:
    """A number of floats as a multiple of d: 196 is d + 96."""
    many, rest = divmod(floats, DIMENSION)
    whole = {0: "", 1: "d"}.get(many, f"{many}d")
    return " + ".join(part for part in (whole, str(rest) if rest else "") if part) or "0"
