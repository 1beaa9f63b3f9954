"""Three methods of each kind over processes, with the parameters and the bytes of the simulation, in float32."""

import pytest

from loading import benchmark
from processes import closing

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from fedspam.federation import terms_of, works_of
from fedspam.flower.wire.schema import Schema

parity = benchmark("parity")
# server and engine sum in other orders: some hundred operations with relative errors of 6e-8 each on numbers around 1
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with closing(parity.Federation(tmp_path_factory.mktemp("parity"))) as federation:
        yield federation.federation()


@pytest.mark.thorough  # each run takes up to a minute, and is ended after `world.LONGEST` seconds
@pytest.mark.parametrize("kind", parity.METHODS)
def test_three_methods_of_each_kind_end_where_the_simulation_does(kind, federation):
    for name in parity.METHODS[kind]:
        found = federation.played(kind, name, 2)
        assert found.difference <= TOLERANCE, found
        assert found.precision == "float32"
        assert found.same_bytes in (True, None), found


def plans(kind):
    """The exchanges of a round of each method, and whether clients remember anything."""
    for make in parity.METHODS[kind].values():
        method = make()
        stateful = any(terms_of(work).stateful for work in works_of(method).values())
        yield len(Schema.of(method, parity.first()).plan.round), stateful


def test_the_kinds_are_what_they_are_called():
    assert {count for count, _ in plans("one exchange")} == {1}
    assert not any(stateful for _, stateful in plans("one exchange"))
    assert all(count > 1 for count, _ in plans("several exchanges"))
    assert all(stateful for _, stateful in plans("client state"))
    assert all(len(methods) == 3 for methods in parity.METHODS.values())


def test_the_simulation_that_is_compared_with_moves():
    """Else parity would mean nothing."""
    for kind, methods in parity.METHODS.items():
        for name in methods:
            run = parity.simulated(kind, name, 2)
            moves = [float(abs(run.params[each] - value).max()) for each, value in parity.first().items()]
            assert min(moves) > 0.01, (kind, name)
