"""An exact fma of whole numpy arrays: a second reference, fast enough for real sizes.

The product of two binary32 numbers is exact in binary64, and the sum is rounded there to odd, which the rounding
to binary32 does not see through (Boldo and Melquiond, 2008). test_operators_matmul_large.py holds it to the
integers of the reference.
"""

import numpy as np


def fma(a, b, c):
    """Elementwise fma of finite float32 arrays."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    other = total - product
    error = (product - (total - other)) + (addend - other)
    bits = total.view(np.int64)
    away = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & (bits & 1 == 0), bits + away, bits)
    return odd.view(np.float64).astype(np.float32)
