"""`ledger trace`, `ledger bisect`, `ledger referee`: from a step that differs to the operator, and to a judgement."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.tracing import culprit, judge, trace_file, trace_record
from bitwitness.kernels.tracing.trace_limits import Limits
from bitwitness.ledger.cli.options import JsonOption
from bitwitness.ledger.errors import BitwitnessError

from ..auditing.culprit_text import difference_json, lines
from ..auditing.venue import LocalPlace, Place
from ..data.reads import NoSuchStep
from ..traces.step_trace import VALUES, StepTrace, trace_step
from .options import AtOnce, Device, Threads, cores
from .progress import counting
from .source import PolicyOption, RunOption, WorkOption, open_to_read


def trace(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A run of this project; or another project's folder, an export or a URL of a log elsewhere, with"
            " --policy.",
        ),
    ],
    step: Annotated[int, typer.Option(min=1, help="The step to trace.")],
    run: RunOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write it; traces/RUN/step-N unless given.")
    ] = None,
    policy: PolicyOption = None,
    work: WorkOption = None,
    call: Annotated[
        str | None, typer.Option(metavar="RUN.CALL", help="Keep the values of this operator call alone, however many.")
    ] = None,
    values_mib: Annotated[
        int, typer.Option("--values-mib", min=0, help="Keep all outputs if they take at most this many MiB; 0: none.")
    ] = VALUES >> 20,
    device: Device = "cpu",
    threads: Threads = None,
    windows_at_once: AtOnce = 0,
    as_json: JsonOption = False,
) -> None:
    """Replay a run to a step, and write down what every operator of the step computes here.

    The folder holds trace.json, which is all that another party needs to compare, step.safetensors, which the referee
    executes, and values.safetensors. Exit status: 0 the step is what the ledger says, 1 it is not.

    Of a run elsewhere the log is mirrored, and one stored state and the data of the steps are fetched and checked, as
    an audit does it; no key is needed, and nothing is signed or sent.

    Example: ledger trace demo --step 12

    Example: ledger trace https://example.org/log demo --step 12 --policy trust.toml
    """
    if out is not None and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise BitwitnessError(f"--out {out} is there already, and a trace is evidence; give another --out")
    with open_to_read(source, policy=policy, work=work) as opened, counting("replaying") as report:
        try:
            found = trace_step(
                opened.place,
                opened.run(run),
                step,
                threads=threads or cores(),
                windows_at_once=windows_at_once,
                values=values_mib << 20,
                only=_call(call),
                report=report,
            )
        except NoSuchStep as error:
            if error.before is not None:
                error.args = (f"{error}: `ledger trace {opened.again(error.before)} --step {step}`",)
            raise
    folder = out or _folder(opened.place, found)
    found.write(folder)
    if as_json:
        result: dict[str, Any] = {
            "folder": str(folder),
            "root": found.trace.root,
            "size": found.trace.size,
            "values": len(found.values),
            "differences": {
                name: {"ledger": expected, "replay": computed}
                for name, (expected, computed) in found.differences.items()
            },
        }
        typer.echo(json.dumps(result, indent=2))
    else:
        outputs = len(found.trace.chunks)
        typer.echo(f"step {step} of {found.about['name']}: {outputs} operator outputs, trace {found.trace.root}")
        differs = f"differs from the ledger in {', '.join(found.differences)}"
        typer.echo(differs if found.differences else "every bit is what the ledger says")
        typer.echo(f"wrote {folder}")
    typer.echo(f"note: `ledger bisect {folder} THEIRS` compares it with another party's", err=True)
    raise typer.Exit(1 if found.differences else 0)


def _folder(place: Place, found: StepTrace) -> Path:
    """In the project; for a log elsewhere in the current folder, runs of one name but of other logs apart."""
    name, run = str(found.about["name"]), str(found.about["run"])
    at = place.project.root if isinstance(place, LocalPlace) else Path()
    return at / "traces" / (name if isinstance(place, LocalPlace) else f"{name}-{run[:16]}") / f"step-{found.step:08d}"


MemoryOption = Annotated[
    int, typer.Option("--memory", metavar="GIB", min=1, max=1 << 20, help="Refuse a file that takes more memory.")
]
WorkLimit = Annotated[
    int,
    typer.Option(
        "--work", metavar="N", min=1, max=10**9, help="Refuse a file that takes more than N*10^12 multiply-adds."
    ),
]


def bisect(
    ours: Annotated[Path, typer.Argument(metavar="OURS", help="A folder of `ledger trace`, or its trace.json.")],
    theirs: Annotated[Path, typer.Argument(metavar="THEIRS", help="Another party's of the same step.")],
    names: Annotated[str, typer.Option(metavar="A,B", help="What to call the two parties.")] = "ours,theirs",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The dispute file; dispute.safetensors beside OURS unless given."),
    ] = None,
    memory: MemoryOption = 8,
    most_work: WorkLimit = 100,
    threads: Threads = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two traces of a step, and find the first operator that wrote something else.

    Its output chunk of 64 KiB, what it read, and both claims go to a file of their own, which `ledger referee` decides.
    Exit status: 0 the traces are the same, 1 they differ.

    Example: ledger bisect traces/demo/step-00000012 theirs --names auditor,trainer
    """
    parties = _names(names)
    limits = Limits.of(memory, most_work, threads or cores())
    mine, others = trace_record.read(ours, limits), trace_record.read(theirs, limits)
    for key, what in (("run", "runs"), ("step", "steps")):
        if mine.about.get(key) != others.about.get(key):
            raise BitwitnessError(f"{ours} and {theirs} are traces of different {what}")
    found = culprit.find(mine, others, names=parties, threads=threads or cores())
    result = difference_json(found, mine)
    if found is not None and found.dispute is not None:
        path = out or (ours if ours.is_dir() else ours.parent) / "dispute.safetensors"
        _keep(path)
        trace_file.write(path, found.dispute)
        result["dispute"] = str(path)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    elif found is None:
        typer.echo(f"the traces are the same: {mine.trace.size} leaves, root {mine.trace.root}")
    else:
        for line in lines(found, mine, parties):
            typer.echo(line)
        if "dispute" in result:
            typer.echo(f"wrote {result['dispute']}: `ledger referee {result['dispute']}` says who is right")
    raise typer.Exit(0 if found is None else 1)


def _keep(path: Path) -> None:
    """Raise BitwitnessError if something else than a dispute is where one would be written, such as a trace."""
    if not path.exists():
        return
    try:
        dispute = any("chunk" in action for action in trace_file.read(path).actions)
    except (KernelError, OSError):
        dispute = False
    if not dispute:
        raise BitwitnessError(f"{path} is there already, and is no dispute; name another file with --out")


def referee(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A dispute, or a step.safetensors of `ledger trace`.")],
    program: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A referee that you built yourself (docs/formats/trace.md).")
    ] = None,
    memory: MemoryOption = 8,
    most_work: WorkLimit = 100,
    threads: Threads = None,
    as_json: JsonOption = False,
) -> None:
    """Have the standalone C++ program compute a dispute again, and say who is right.

    It needs no ledger, no project and no trust in whoever made the file: all that it reads is in it. Exit status: 0
    somebody's claim is right, or all roots are as expected; 1 nobody's is, or a root is another one.

    Example: ledger referee dispute.safetensors
    """
    found = judge.judge(file, threads=threads or cores(), program=program, gib=memory, tera=most_work)
    if as_json:
        facts = [dict(fact) for fact in found.facts]
        result = {"facts": facts, "right": list(found.right), "status": found.status, "wrong": list(found.wrong)}
        typer.echo(json.dumps(result, indent=2))
    else:
        for line in _judged(found):
            typer.echo(line)
    raise typer.Exit(found.status)


def _judged(found: judge.Judgement) -> list[str]:
    said = []
    for fact in found.facts:
        if fact["fact"] == "commitment":
            said.append(f"{fact['label']}: root {fact['root']}, {fact.get('verdict', 'nothing expected')}")
        elif fact["fact"] == "chunk":
            said.append(f"chunk of {fact['slot']}, elements {fact['begin']} to {fact['end'] - 1}: {fact['hash']}")
    for name in found.right:
        said.append(f"{name} is right")
    for name in found.wrong:
        said.append(f"{name} is wrong: claims {found.claims[name]}")
    return said or ["the file makes no claims; nothing to decide"]


def _call(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", text)
    if match is None:
        raise BitwitnessError(f"--call {text}: give the numbers of run and call as `ledger bisect` does, such as 0.17")
    return int(match[1]), int(match[2])


def _names(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([A-Za-z0-9._-]{1,40}),([A-Za-z0-9._-]{1,40})", text)
    if match is None or match[1] == match[2]:
        raise BitwitnessError(f"--names {text}: give two different names, such as auditor,trainer")
    return match[1], match[2]
