"""The audit of dependencies finds what its database knows. `make audit` runs it with the real one."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[1] / ".ci" / "audit.py"
SPEC = importlib.util.spec_from_file_location("fedspam_audit", PATH)
assert SPEC is not None
assert SPEC.loader is not None
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)

DATABASE = {"Some.Package": [{"specs": ["<1.2", ">=2.0,<2.1"], "cve": "CVE-1", "advisory": "It leaks."}]}


def test_versions_are_compared_by_the_rules_of_versions():
    for version, known in (("1.1.9", 1), ("1.2", 0), ("1.10", 0), ("2.0.5", 1), ("2.1", 0)):
        assert len(audit.known(audit.pins(f"some_package=={version}\n"), DATABASE)) == known, version


def test_every_pin_of_this_project_is_read():
    text = (PATH.parents[1] / "constraints.txt").read_text()
    assert len(audit.pins(text)) == sum("==" in line for line in text.splitlines())
    assert audit.known(audit.pins(text), DATABASE) == []
