"""Find the proofs that `fedspam theory --verify` checks, with the solver of the extra `tight`.

    python reproductions/proofs.py

It writes `src/fedspam/app/theory/proofs.json`. The numbers in it are fractions, so that checking them needs no solver.
"""

import json
from fractions import Fraction

from fedspam.app.theory.proofs import STORED, program

PAPER = {"1/20": "6/31", "1/4": "6/7", "1/2": "24/25", "9/10": "1944/1969"}  # the least fresh weight that it allows
PROGRAMS = [
    *(("round_of_clients", {"clients": n, "ratio": r, "fresh_weight": p}) for n in (2, 4) for r, p in PAPER.items()),
    *(("round_of_clients", {"clients": 3, "ratio": "1/4", "fresh_weight": "6/11", "cohort": b}) for b in (5,)),
    *(("averaged_round", {"ratio": "1/10", "drift": "1/96", "weak": w}) for w in ("0", "3/20", "1/2")),
    *(("several_rounds", {"rounds": k, "ratio": "1/4", "kept": "1/49", "drift": "1/98"}) for k in (1, 2, 4)),
    ("gradient_round", {"ratio": "1/2", "drift": "1/4"}),
    ("sppm_round", {"convex": "1/2"}),
    ("svrp_round", {"ratio": "1/8", "convex": "1/8", "chance": "1/4", "weight": "1/4"}),
]

if __name__ == "__main__":
    found = []
    for name, arguments in PROGRAMS:
        proof = program(name, {key: Fraction(value) for key, value in arguments.items()}).certify()
        row = {"program": name, "arguments": {key: str(value) for key, value in arguments.items()}}
        found.append({**row, "multipliers": {key: str(value) for key, value in proof.items()}})
    STORED.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
    print(f"{STORED}: {len(found)} proofs")
