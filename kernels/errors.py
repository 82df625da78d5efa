"""Errors of the kernels package."""


class KernelError(Exception):
    """Bad input to an operator, a program or a scalar function; the message says what to do."""

    exit_code = 2


class ShapeError(KernelError):
    """Operand shapes, dtypes or sizes that do not fit the operator."""
