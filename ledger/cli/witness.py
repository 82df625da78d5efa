"""`ledger witness`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BitwitnessError, FoundWrong
from ..files.user_files import read_file, write_file
from ..note import Verifier
from ..trust import load_trust
from ..witness_policy import parse_policy
from ..witnessing.witness import Witness
from ..witnessing.witness_request import MAX_REQUEST
from . import output
from .options import JsonOption, current_project, load_key

app = typer.Typer(help="Watch over logs: cosign checkpoints that only ever extend one another.", no_args_is_help=True)

KeyOption = Annotated[Path, typer.Option("--key", metavar="FILE", help="The witness's private key.")]
NameOption = Annotated[
    str, typer.Option("--name", help="The name it cosigns by, best an address without scheme: witness.example/w1.")
]
LogOption = Annotated[
    list[str] | None, typer.Option("--log", metavar="VKEY", help="A log to watch; again for more. Else the project's.")
]
PolicyOption = Annotated[
    Path | None, typer.Option("--policy", metavar="FILE", help="Watch the `log` lines of this tlog-policy file, too.")
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="Its memory, what it cosigned last; back it up, never reset it. Else beside the key, w1.pem having w1.db.",
    ),
]


@app.command()
def serve(
    key: KeyOption,
    name: NameOption,
    log: LogOption = None,
    policy: PolicyOption = None,
    state: StateOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8002,
) -> None:
    """Answer add-checkpoint requests (C2SP tlog-witness) until Ctrl-C.

    Prints its address, and on stderr the key for others to pin, which it also answers at /vkey. Put a TLS proxy before
    it for the public.

    Example: ledger witness serve --key witness.pem --name witness.example/w1 --log "$LOG_VKEY"
    """
    from ..witnessing import witness_server  # asyncio takes longer to import than a model to be verified

    witness = _witness(name, key, _logs(log, policy), state)
    try:
        witness_server.run_server(witness, host, port)
    finally:
        witness.close()


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="A file of `ledger checkpoint --request`.")],
    key: KeyOption,
    name: NameOption,
    log: LogOption = None,
    policy: PolicyOption = None,
    state: StateOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here, not to stdout.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Cosign by file, without a server: check a request as `witness serve` would, and print the cosignature line.

    The log's people add it with `ledger checkpoint --cosignature FILE`. Exit code 1 if the request is refused.

    Example: ledger witness sign request.txt --key witness.pem --name witness.example/w1 --log "$LOG_VKEY"
    """
    witness = _witness(name, key, _logs(log, policy), state)
    try:
        answer = witness.add_checkpoint(read_file(request, MAX_REQUEST))
    finally:
        witness.close()
    if answer.alarm is not None:
        raise Refused(answer.alarm)
    if answer.status == 409:
        raise Refused(f"409: this witness has cosigned {answer.body.strip()} entries; make the request --since those")
    if answer.status != 200:
        raise Refused(f"{answer.status}: {answer.body.strip()}")
    if out is not None:
        write_file(out, answer.body)
    if json_output:
        output.emit_json({"vkey": witness.verifier.vkey, "cosignature": answer.body})
    elif out is None:
        sys.stdout.write(answer.body)
    output.note(f"cosigned by {witness.verifier.vkey}")


def _witness(name: str, key: Path, logs: list[Verifier], state: Path | None) -> Witness:
    """The witness, with a line for each log on what it remembers: an empty memory cosigns any tree."""
    state = state or key.with_suffix(".db")
    witness = Witness(name, load_key(key, "witness"), logs, state)
    for origin in witness.origins:
        newest = witness.newest(origin)
        said = "nothing yet; if it has cosigned before, stop it and put its memory back"
        output.note(f"memory {state}: of {origin} {said if newest is None else f'{newest[0]} entries are cosigned'}")
    return witness


class Refused(FoundWrong):
    """The witness does not cosign this; the message begins with the HTTP status that it would answer."""


def _logs(vkeys: list[str] | None, policy: Path | None) -> list[Verifier]:
    logs = [Verifier.parse(vkey) for vkey in vkeys or []]
    if policy is not None:
        listed = parse_policy(read_file(policy, 1 << 20)).logs
        logs += [item.verifier for item in listed if item.verifier not in logs]
        if not logs:
            raise BitwitnessError(f"{policy}: it lists no log")
    return logs or [load_trust(current_project().trust_path).log]
