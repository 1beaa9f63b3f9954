"""PyTorch's operations in JAX."""

from fedspam.models.aten.batch import Batch as Batch, dtype_of as dtype_of
from fedspam.models.aten.table import (
    IGNORED as IGNORED,
    OPERATIONS as OPERATIONS,
    WHOLE as WHOLE,
    WITH_BATCH as WITH_BATCH,
)
