"""Errors of the kernels package."""

_LONGEST = 590


class KernelError(Exception):
    """Bad input to an operator, a program or a scalar function; the message says what to do.

    Files that others hand over have names and numbers in them that it quotes: it stays one printable line all the same.
    The ledger has this rule, too (ledger/errors.py); neither package imports the other.
    """

    exit_code = 2

    def __init__(self, message: object = "") -> None:
        text = str(message)
        text = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        super().__init__(text if len(text) <= _LONGEST else f"{text[:390]} … {text[-190:]}")


class ShapeError(KernelError):
    """Operand shapes, dtypes or sizes that do not fit the operator."""
