"""The conformance kit, answered by a client that shares no code with the package: NumPy alone."""

import itertools
import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from fedspam_client import conformance


class NumpyClient:
    """A client written from the words of kit.json."""

    def __init__(self, folder):
        self.kit = json.loads((folder / "kit.json").read_text())
        rows = safetensors.numpy.load_file(folder / "problem.safetensors")
        self.id = self.kit["client"]
        self.features, self.label = (rows[f"client-{self.id}.{part}"] for part in ("features", "label"))
        self.schemas, self.memories, self.held = {}, {}, {}

    def value(self, x):
        return np.logaddexp(0, -self.label * (self.features @ x)).mean() + 0.05 * x @ x

    def gradient(self, x):
        weights = -self.label / (1 + np.exp(self.label * (self.features @ x))) / len(self.label)
        return self.features.T @ weights + 0.1 * x

    def answer(self, method, head, fields):
        if head["type"] == "query.whoami":
            self.schemas[method] = head["schema"]
            return {"partition-id": self.id, "num-partitions": 3, "fedspam": "numpy", "schema": head["schema"]}, None
        works = {
            "spam_pp": {"starting_gradient": self.starting_gradient, "difference": self.difference, "prox": self.prox},
            "scaffold": {"train": self.controlled},
            "fedavg": {"train": self.steps},
            "auto": {"begin": self.begin, "difference": self.sketched, "prox": self.promised},
        }[method]
        if head["schema"] != self.schemas[method] or head["exchange"] not in works:
            return {"refused": "I do not know this"}, None
        if int(fields["@client"]) != self.id:
            return {"refused": "not for me"}, None
        here = (head["run"], int(fields["@round"]))
        if self.held.get("here") != here:
            self.held = {"here": here}
        self.held |= fields
        reply = works[head["exchange"]](head, self.held)
        if reply is None:
            return {"refused": "I have lost my memory"}, None
        answer = {"@client": fields["@client"], "@round": fields["@round"], **reply}
        return {"schema": head["schema"], "exchange": head["exchange"]}, answer

    def starting_gradient(self, head, fields):
        return {"reply": self.gradient(fields["x"])}

    def difference(self, head, fields):
        return {"reply": self.gradient(fields["x"]) - (1 - fields["fresh_weight"]) * self.gradient(fields["x_prev"])}

    def prox(self, head, fields):
        x, g, gamma = fields["x"], fields["g"], float(fields["step_size"])
        slope = lambda y: self.gradient(y) - self.gradient(x) + g + (y - x) / gamma
        phi = lambda y: self.value(y) + (g - self.gradient(x)) @ (y - x) + (y - x) @ (y - x) / (2 * gamma)
        y = x
        for _ in range(3):
            y = y - 0.2 * slope(y)
        decrease, stationarity, distance = phi(y) - phi(x), np.linalg.norm(slope(y)), np.linalg.norm(y - x)
        certified = decrease <= 0 and stationarity <= np.sqrt(3) / 4 * distance / gamma
        certificate = {
            "decrease": decrease, "stationarity": stationarity, "distance": distance, "step_size": gamma,
            "steps": 3, "gradients": 4, "certified": certified,
        }  # fmt: skip
        return {"reply.x": y, **{f"reply.certificate.{name}": np.float64(value) for name, value in certificate.items()}}

    def controlled(self, head, fields):
        memories = {0: np.zeros(4), **self.memories}
        if head["memory"] not in memories:
            return None
        c, y = memories[head["memory"]], fields["x"]
        for _ in range(2):
            y = y - fields["local_rate"] * (self.gradient(y) - c + fields["control"])
        moved = y - fields["x"]
        self.memories = {v: memories[v] for v in (head["memory"], head["settled"]) if v in memories}
        self.memories[head["becomes"]] = c - fields["control"] - moved / (2 * fields["local_rate"])
        return {"reply.moved": moved}

    def steps(self, head, fields):
        y = fields["x"]
        for _ in range(2):
            y = y - fields["local_rate"] * self.gradient(y)
        return {"reply.moved": y - fields["x"]}

    def begin(self, head, fields):
        g = self.gradient(fields["x"])
        return {"reply.g": g, **moments("fresh", sketch(g, fields["seed"])), "reply.sampled": np.float64(0)}

    def sketched(self, head, fields):
        x, x_prev, p = fields["x"], fields["x_prev"], fields["fresh_weight"]
        a, b = self.gradient(x), self.gradient(x_prev)
        of_a, of_b, slope = sketch(a, fields["seed"]), sketch(b, fields["seed"]), b @ (x - x_prev)
        bend = self.value(x) - self.value(x_prev) - slope
        if abs(bend) < np.finfo(np.float64).eps ** (2 / 3) * (abs(self.value(x)) + abs(self.value(x_prev))):
            bend = 0.5 * (a - b) @ (x - x_prev)
        parts = {"fresh": of_a, "change": of_a - of_b, "sent": of_a - (1 - p) * of_b}
        reply = {"reply.c": a - (1 - p) * b, "reply.slope": slope, "reply.bend": bend}
        return reply | {name: part for kind in parts for name, part in moments(kind, parts[kind]).items()}

    def promised(self, head, fields):
        reply = self.prox(head, {**fields, "x": fields["x_prev"] if fields["back"] else fields["x"]})
        decrease, distance = (reply[f"reply.certificate.{name}"] for name in ("decrease", "distance"))
        promise = decrease - distance**2 / (2 * fields["step_size"])
        return {**reply, "reply.promise": promise, "reply.rate": np.log(fields["rate"])}


def sketch(v, seed):
    """Random signs, summed into 16 buckets."""
    sums, key = np.zeros(16), [int(word) for word in seed]
    for i, part in enumerate(v):
        a, b = threefry(key, [0, i])
        sums[i % 16] += part if (a ^ b) & 1 else -part
    return sums


def threefry(key, counter):
    """threefry2x32 with 20 rounds, on Python's integers."""
    keys, word = [*key, key[0] ^ key[1] ^ 0x1BD11BDA], 2**32
    a, b = (counter[0] + keys[0]) % word, (counter[1] + keys[1]) % word
    for group in range(5):
        for turn in [(13, 15, 26, 6), (17, 29, 16, 24)][group % 2]:
            a = (a + b) % word
            b = ((b << turn) % word | b >> (32 - turn)) ^ a
        a, b = (a + keys[(group + 1) % 3]) % word, (b + keys[(group + 2) % 3] + group + 1) % word
    return a, b


def moments(name, sums):
    return {f"reply.{name}.first": sums, f"reply.{name}.second": sums**2}


@pytest.fixture
def answered(tmp_path):
    """The kit with the answers of the NumPy client."""
    assert conformance.main(["make", str(tmp_path)]) == 0
    assert not list(tmp_path.rglob("reply.*"))
    client = NumpyClient(tmp_path)
    for case in client.kit["cases"]:
        folder = tmp_path / case["name"]
        fields = folder / "message.safetensors"
        head = json.loads((folder / "message.json").read_text())
        reply_head, reply = client.answer(
            case["method"], head, safetensors.numpy.load_file(fields) if fields.exists() else {}
        )
        (folder / "reply.json").write_text(json.dumps(reply_head))
        if reply is not None:
            safetensors.numpy.save_file(
                {name: np.asarray(part) for name, part in reply.items()}, folder / "reply.safetensors"
            )
    return tmp_path


def test_a_client_in_numpy_conforms(answered, capsys):
    assert [finding for finding in conformance.check(answered) if finding.complaint] == []
    assert conformance.main(["check", str(answered)]) == 0
    assert "ok" in capsys.readouterr().out


def test_the_kit_holds_the_difficult_cases(answered):
    heads = [json.loads((answered / case / "message.json").read_text()) for case in conformance.cases()]
    prox = [head["whole"] for head in heads if head.get("exchange") == "prox"]
    assert set(prox) == {True, False}  # with and without what the client holds already
    memories = [head["memory"] for head in heads if head.get("exchange") == "train" and head["memory"] != 77]
    assert any(a == b != 0 for a, b in itertools.pairwise(memories))  # a reply that was not accepted


def changed(path, **parts):
    """The arrays of a reply with some of them changed, or taken out."""
    fields = safetensors.numpy.load_file(path) | parts
    safetensors.numpy.save_file({name: part for name, part in fields.items() if part is not None}, path)


def test_every_fault_is_found(answered):
    spare = answered
    cases = {
        "spam_pp-01": (lambda reply: changed(reply, reply=np.ones(4)), "reply is off by"),
        "spam_pp-02": (lambda reply: changed(reply, reply=np.ones(5)), r"float64\[5\], expected float64\[4\]"),
        "spam_pp-03": (lambda reply: changed(reply, **{"reply.x": np.ones(4, np.float32)}), "float32"),
        "scaffold-01": (lambda reply: changed(reply, **{"@round": None}), "lacks ['@round']"),
        "scaffold-02": (lambda reply: reply.write_bytes(b"nonsense"), "reply.safetensors"),
        "scaffold-03": (lambda reply: reply.unlink(), "cannot read"),
        "scaffold-04": (lambda reply: shutil.copy(spare / "scaffold-01" / "reply.json", reply.parent), "must refuse"),
        "fedavg-01": (lambda reply: shutil.copy(spare / "scaffold-05" / "reply.json", reply.parent), "refused: "),
        "fedavg-00": (lambda reply: reply.with_suffix(".json").write_text('{"partition-id": 2}'), "partition-id = 2"),
    }  # fmt: skip
    for case, (spoil, _) in cases.items():
        spoil(answered / case / "reply.safetensors")
    complaints = {finding.case: finding.complaint for finding in conformance.check(answered) if finding.complaint}
    assert complaints.keys() == cases.keys()
    for case, (_, complaint) in cases.items():
        assert complaint.replace("\\", "") in complaints[case]
    assert conformance.main(["check", str(answered)]) == 1


@pytest.mark.slow
def test_the_golden_files_are_what_the_package_says_today(tmp_path):
    pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
    from recording import record

    remedy = "make it anew: python tests/recording.py client/src/fedspam_client/golden"
    record(tmp_path)
    assert [finding for finding in conformance.check(tmp_path) if finding.complaint] == [], remedy
    for path in conformance.GOLDEN.rglob("message.json"):
        golden, now = (
            json.loads((root / path.parent.name / path.name).read_text()) for root in (conformance.GOLDEN, tmp_path)
        )
        golden.pop("run", None), now.pop("run", None)
        assert golden == now, remedy
