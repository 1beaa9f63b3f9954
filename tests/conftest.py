"""Tests run in JAX's default precision on the CPU, as users do; those marked x64 are about float64.

With FEDSPAM_TEST_DEFAULTS=1 they also run with XLA's default flags: programs of other rounding that compile longer.
"""

import atexit
import collections
import ctypes
import gc
import importlib.metadata
import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# two workers on two cores: threads of OpenBLAS only wait for each other
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# what one worker or child process has compiled, the others need not; the first process to come here makes the folder
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="fedspam-programs-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("XLA_FLAGS", "")
if os.environ.get("FEDSPAM_TEST_DEFAULTS") != "1":  # tests compile much and compute little
    os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # XLA aborts at a flag that it does not know
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"  # a third less time, without MLIR

import importlib.util
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

# where Flower is not installed, as in `make test-newest`, its tests and the room itself are left out
collect_ignore_glob = (
    [] if importlib.util.find_spec("flwr") else ["client/*", "flower/*", "processes.py", "recording.py"]
)

SIMULATES = re.compile(r"\b(simulate|simulate_many|progress|measure)\(")
MARKED_WHOLE = re.compile(r"^pytestmark = (\[[^\]]*|.*)mark\.x64", re.MULTILINE)
MAPS, PAGES = Path("/proc/self/maps"), Path("/proc/self/statm")
LONGEST = ("repository/test_site.py", "flower/test_processes.py", "flower/test_template.py")  # they start processes
ROOM = 1.2e9  # bytes that a worker may fill with compiled programs before it forgets them


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A module that is marked x64 as a whole makes its constants in float64."""
    of_tests = isinstance(collector, pytest.Module) and collector.path.name.startswith("test_")
    with jax.enable_x64(of_tests and MARKED_WHOLE.search(collector.path.read_text(encoding="utf-8")) is not None):
        return (yield)


def pytest_collection_modifyitems(items):
    """Files that take long come first, so that no worker begins one when the other has nothing left to do.

    Doctests have no marks: those that simulate compile a program, as slow tests do.
    """
    for item in items:
        if isinstance(item, pytest.DoctestItem) and any(SIMULATES.search(each.source) for each in item.dtest.examples):
            item.add_marker(pytest.mark.slow)
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (not item.path.as_posix().endswith(LONGEST), -slow[item.path]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A fixture of a module has the precision of the first test that asks for it: then mark the module as a whole."""
    jax.config.update("jax_enable_x64", item.get_closest_marker("x64") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """XLA cannot convert float16 without F16C: where that is forced away, a test that needs it is skipped."""
    try:
        return (yield)
    except jax.errors.JaxRuntimeError as error:
        if "xla_cpu_max_isa=SSE4_2" in os.environ["XLA_FLAGS"] and "Failed to materialize symbols" in str(error):
            pytest.skip("XLA has no conversions of float16 for SSE4.2, which XLA_FLAGS forces")
        raise


def resident():
    """The bytes of memory that this process fills."""
    return int(PAGES.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if PAGES.exists() else 0


class Forgetful:
    """Compiled programs hold memory, and memory maps, of which Linux gives a process 65,530: forget them in time.

    This is a plugin because the hooks of this file hear of the tests beside it alone, and doctests compile as much.
    """

    tests, kept = 0, 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self):
        self.tests += 1
        many = self.tests % 20 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > 30_000
        if many or resident() > max(ROOM, self.kept + ROOM / 2):
            jax.clear_caches()
            gc.collect()
            if hasattr(trim := ctypes.CDLL(None), "malloc_trim"):
                trim.malloc_trim(0)  # glibc keeps what was freed
            self.kept = resident()


def pytest_configure(config):
    config.pluginmanager.register(Forgetful())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    jax.config.update("jax_enable_x64", False)  # doctests of the package come after tests, and no hook sets them up


@pytest.fixture(scope="session")
def data():
    """The folder of the real data, which the package does not ship."""
    from fedspam import datasets

    folder = Path(os.environ.get(datasets.FOLDER_VARIABLE) or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no data: {datasets.FOLDER_VARIABLE} is not set and {folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def play():
    """A few rounds of a method, with the draws of `simulate` at less than half its compile time: no rows, no prices."""
    from fedspam.federation.traced import Traced

    @jax.jit
    def begin(method, clients, x, key):
        rows = lambda leaf: jnp.broadcast_to(leaf, (clients.size, *leaf.shape))
        fed = Traced(clients, memory=jax.tree.map(rows, method.client_state(x)))
        return method.init(x, jax.random.fold_in(key, 2**32 - 1), fed), fed.memory

    @jax.jit
    def step(method, clients, state, memory, key, k, replay):
        fed = Traced(clients, memory=memory, round=k, replay=replay)
        state, _ = method.round(state, jax.random.fold_in(key, k), fed)
        return state, fed.memory

    def play(method, clients, rounds=6, *, x=None, key=0, **replay):
        key, x = jax.random.key(key), jnp.ones(clients.dimension) if x is None else jnp.asarray(x)
        replay = {role: jnp.asarray(ids) for role, ids in replay.items()} or None
        state, memory = begin(method, clients, x, key)
        for k in range(rounds):
            state, memory = step(method, clients, state, memory, key, jnp.int32(k), replay)
        return types.SimpleNamespace(params=method.params(state), state=state, memory=memory)

    return play
