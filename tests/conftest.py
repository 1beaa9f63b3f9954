"""All tests run in float64 on the CPU; those of float32 behaviour ask for it by dtype."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# tests compile much and compute little
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax

jax.config.update("jax_enable_x64", True)
