"""`fedspam cite`: every method has complete entries, and the entries agree with the table of methods."""

import pytest

from fedspam import __version__
from fedspam.app import cite
from fedspam.app.cli import main
from fedspam.methods import METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_complete_entries(name: str) -> None:
    *papers, software = cite.cite(name).strip().split("\n\n")
    references = METHODS[name].reference.split("; ")
    assert len(papers) == len(references)
    for paper, reference in zip(papers, references, strict=True):
        found = cite.fields(paper)
        assert found["title"]
        if reference != cite.OURS:
            families = ", ".join(author.partition(",")[0] for author in found["author"].split(" and "))
            assert reference.startswith(f"{families} {found['year']}")
            assert found.get("eprint", "") in reference
    assert software == cite.SOFTWARE
    assert __version__ in software


def test_every_paper_is_of_a_method() -> None:
    cited = "\n\n".join(map(cite.cite, METHODS))
    papers = cite._papers()
    assert all(paper in cited for paper in papers)
    assert len({paper.partition(",")[0] for paper in papers}) == len(papers), "a key stands for one paper"
    for paper in papers:
        lines = paper.splitlines()
        assert len(cite.fields(paper)) == len(lines) - 2, "every line is a field"
        assert all(line.count("{") == line.count("}") for line in lines[1:-1])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cite"]) == 0
    assert capsys.readouterr().out == cite.cite("spam")
    assert main(["cite", "sppm"]) == 0
    printed = capsys.readouterr().out
    assert [line.partition("{")[2] for line in printed.splitlines() if line.startswith("@")] == [
        "bertsekas2011incremental,", "khaled2022svrp,", "fedspam,"
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="2"):
        main(["cite", "scafold"])
    assert "did you mean 'scaffold'?" in capsys.readouterr().err
