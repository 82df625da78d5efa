"""What several commands of this floor take: witnesses to ask, and how a cosigned checkpoint is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from bitwitness.ledger.cli.checkpoint import ask_witnesses
from bitwitness.ledger.cli.output import note
from bitwitness.ledger.files.sizes import SIZES
from bitwitness.ledger.project import Project
from bitwitness.ledger.store import Ledger

WitnessOption = Annotated[
    list[str] | None, typer.Option("--witness", metavar="URL", help="Have this witness cosign, as `ledger checkpoint`.")
]
WitnessesOption = Annotated[bool, typer.Option("--witnesses", help="Ask all witnesses of trust.toml.")]
SIZE_HELP = f"Cut weights into files of at most this size: {SIZES}."
VersionArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="NAME (its newest version), NAME/VERSION or NAME@ALIAS.")
]


def cosigner(project: Project, witness: Sequence[str] | None, witnesses: bool) -> Callable[[Ledger, str], str]:
    """A function that has the named witnesses cosign a checkpoint note; who fails is said on stderr."""

    def cosign(ledger: Ledger, signed: str) -> str:
        if not witness and not witnesses:
            return signed
        trust = project.trust()
        cosigned, failures = ask_witnesses(ledger, signed, list(witness or []), witnesses, trust)
        for failure in failures:
            note(f"error: {failure}")
        return cosigned

    return cosign
