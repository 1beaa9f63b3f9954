"""`fedspam cite`: BibTeX entries for the papers of the methods. `papers.bib` holds one entry per paper."""

import re
from importlib import resources

from fedspam import __version__
from fedspam._internal.nearest import did_you_mean
from fedspam.app import UsageError
from fedspam.methods import METHODS

OURS = "this library"  # the reference of methods without a paper of their own
SOFTWARE = f"""@software{{fedspam,
  author = {{{{The fedspam authors}}}},
  title = {{fedspam: Federated optimization that benefits from clients being alike}},
  version = {{{__version__}}},
}}"""
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)
ARXIV = re.compile(r"arXiv:(\d{4}\.\d+)")


def cite(method: str | None = None) -> str:
    """The entries of a method's papers and of fedspam; without a method, of SPAM's paper and of fedspam.

    >>> cite("fedavg").splitlines()[0]
    '@misc{mcmahan2017fedavg,'
    """
    if method is not None and method not in METHODS:
        hint = did_you_mean(method, METHODS, "`fedspam methods` lists all of them")
        raise UsageError(f"method = {method!r} is unknown; {hint}")
    reference = METHODS[method or "spam"].reference
    if reference == OURS:
        reference = METHODS["spam"].reference
    return "\n\n".join([*map(entry, reference.split("; ")), SOFTWARE]) + "\n"


def entry(reference: str) -> str:
    """The entry of one paper, given as in the table of methods: "Authors year, arXiv:number"."""
    return next(text for text in _papers() if _is_of(fields(text), reference))


def fields(entry: str) -> dict[str, str]:
    """The fields of an entry of `papers.bib`."""
    return dict(FIELD.findall(entry))


def _papers() -> list[str]:
    return (resources.files("fedspam.app.cite") / "papers.bib").read_text(encoding="utf-8").strip().split("\n\n")


def _is_of(paper: dict[str, str], reference: str) -> bool:
    """Whether a paper has the authors, the year and the arXiv number of a reference."""
    families = ", ".join(name.partition(",")[0] for name in paper["author"].split(" and "))
    arxiv = ARXIV.search(reference)
    number = arxiv[1] if arxiv else None
    return reference.startswith(f"{families} {paper['year']}") and paper.get("eprint") == number
