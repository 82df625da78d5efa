"""A running `ledger witness serve`, for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bitwitness.ledger import keys, note
from bitwitness.ledger.note import Verifier

LEDGER = [sys.executable, "-c", "import sys; from bitwitness.ledger.cli import main; sys.exit(main())"]


class WitnessProcess:
    """A witness on a free port of this machine, for one log. Its memory stays when it is started again."""

    def __init__(self, folder: Path, name: str, log: Verifier, seed: int) -> None:
        folder.mkdir(exist_ok=True)
        self.key = folder / f"{name}.pem"
        self.state = folder / f"{name}.db"
        self.signer = keys.Signer.from_seed("witness", bytes([seed]) * 32)
        self.verifier = Verifier(f"{name}.example", self.signer.public, note.COSIGNATURE)
        if not self.key.exists():
            keys.save(self.signer, self.key)
        self.options = ["--key", str(self.key), "--name", self.verifier.name, "--log", log.vkey, "--state",
                        str(self.state)]  # fmt: skip
        self.process = subprocess.Popen(
            [*LEDGER, "witness", "serve", *self.options, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(self.process.communicate()[1])

    @property
    def line(self) -> str:
        """Its line in a tlog-policy."""
        return f"witness {self.verifier.name.split('.')[0]} {self.verifier.vkey} {self.url}\n"

    def stop(self) -> str:
        """End it; returns what it said on stderr."""
        self.process.terminate()
        return self.process.communicate(timeout=20)[1]
