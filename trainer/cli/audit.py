"""`ledger audit`: here or elsewhere, of steps, parts, held-out losses, or of another auditor's audit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any

import typer

from bitwitness.ledger.cli.options import JsonOption
from bitwitness.ledger.cli.output import emit_json, note, say
from bitwitness.ledger.entry.drand import MAX_FILE
from bitwitness.ledger.errors import BitwitnessError, Stopped
from bitwitness.ledger.files.user_files import read_file

from ..auditing.ancestry_audit import AncestryReport, audit_ancestry, plan_ancestry
from ..auditing.audit import audit as run_audit
from ..auditing.plan import plan_audit
from ..auditing.recheck import recheck as run_recheck
from .audit_text import ancestry_json, audit_json, plan_lines, recheck_json, recheck_lines, tell
from .options import AtOnce, Device, Threads, cores
from .progress import counting
from .source import PolicyOption, RunOption, WorkOption, open_source

EXIT_STATUS = {"match": 0, "mismatch": 1}


def audit(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="A run of this project; or another project's folder, if you write its ledger; or an export or a URL of"
            " a log elsewhere, with --policy. Only with --recheck it may be left out.",
            show_default=False,
        ),
    ] = None,
    run: RunOption = None,
    sample: Annotated[int, typer.Option(min=0, help="Units to draw on top of those that always count.")] = 3,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Replay exactly the units that hold steps A to B instead.")
    ] = None,
    uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Replay what is this auditor's next instead (ledger coverage).")
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Also the runs that it goes on from; --steps may reach across. The sample is for each, and --uncovered"
            " takes one interval of all.",
        ),
    ] = False,
    recheck: Annotated[
        str | None,
        typer.Option(metavar="ENTRY", help="Compute this audit of another auditor again, and say if it holds."),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Only this part of each of --steps: shard:N, fold, norm or update:TENSOR."),
    ] = None,
    evals: Annotated[
        str | None,
        typer.Option("--eval", metavar="ENTRY", help="Only the held-out loss in this entry of the log, or `all`."),
    ] = None,
    beacon: Annotated[
        str | None,
        typer.Option(
            metavar="BEACON",
            help="What the sample is drawn from: witness:NAME (of trust.toml), or quicknet[:ROUND], a round of drand.",
        ),
    ] = None,
    intent: Annotated[
        list[int] | None,
        typer.Option(
            metavar="INDEX",
            help="Go on with this announced audit, whose beacon was awaited; with --history of each run.",
        ),
    ] = None,
    round_file: Annotated[
        Path | None, typer.Option("--round", metavar="FILE", help="The announced round, JSON as drand answers it.")
    ] = None,
    policy: PolicyOption = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The auditor's private key; this project's unless given.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what is signed there, for `ledger append` by the log's owner."),
    ] = None,
    work: WorkOption = None,
    screen: Annotated[
        bool,
        typer.Option("--screen", help="Also hold all stored states at hand against what AdamW allows; reads them."),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what it takes: bytes to fetch, memory, time on this machine.")
    ] = False,
    device: Device = "cpu",
    threads: Threads = None,
    windows_at_once: AtOnce = 0,
    as_json: JsonOption = False,
) -> None:
    """Replay steps of a run, compare every bit with the ledger, and append the signed result.

    The initial state, the last step, released steps and both sides of every resume always count. The intent is
    in the ledger before the sample is drawn from it, and with --beacon from a number that nobody knew then. Exit
    status: 0 match, 1 mismatch, 2 anything else.

    Of somebody else's log only its trust.toml is needed, and a key that he has enrolled (ledger key generate). Only
    what the chosen steps read is fetched, and all of it is checked against his log before use.

    With --recheck the audit in log entry ENTRY (index or leaf hash) is computed again from where it started, and what
    comes out is signed: exit status 0 confirmed, 1 refuted, 2 inconclusive.

    Example: ledger audit demo --sample 3

    Example: ledger audit demo --beacon witness:w1

    Example: ledger audit tuned --history --sample 1

    Example: ledger audit demo --eval all

    Example: ledger audit --recheck 57

    Example: ledger audit https://example.org/log demo --policy trust.toml --key alice.pem
    """
    if recheck is not None:
        if any((run, steps, uncovered, history, part, evals, beacon, intent, round_file, screen, plan)):
            raise BitwitnessError("--recheck goes with a source, --policy, --key, --out, --work and --threads alone")
        with (
            open_source(source, policy=policy, key=key, out=out, work=work) as opened,
            counting("rechecking") as told,
        ):
            try:
                found = run_recheck(
                    opened.place, recheck, threads=threads or cores(), windows_at_once=windows_at_once, report=told
                )
            except KeyboardInterrupt:
                raise _stopped() from None
        if as_json:
            emit_json(recheck_json(found))
        else:
            for line in recheck_lines(found):
                say(line)
            if found.resumed:
                note("note: this went on with the recheck that was stopped before")
        raise typer.Exit({"confirmed": 0, "refuted": 1}.get(found.result, 2))
    if source is None:
        raise BitwitnessError("say what to audit: a run of this project, a folder, or a URL")
    if history and evals is not None:
        raise BitwitnessError("--eval is of one run; leave out --history")
    if intent and len(intent) > 1 and not history:
        raise BitwitnessError("several --intent are of the several runs of --history; give one, or --history, too")
    if uncovered and (steps or beacon or intent):
        raise BitwitnessError("--uncovered chooses the steps; it goes with no --steps, --beacon or --intent")
    if steps and (beacon or intent):
        raise BitwitnessError("steps chosen by hand go with no beacon and with no announced sample; leave out --steps")
    if part is not None and not steps:
        raise BitwitnessError("one part is audited of steps that you name: give --steps A:B, too")
    samples, chosen = 0 if steps or uncovered or evals is not None else sample, _range(steps)
    asked: dict[str, Any] = {"samples": samples, "steps": chosen, "uncovered": uncovered}
    asked |= {"threads": threads or cores(), "windows_at_once": windows_at_once}
    one_intent = intent[0] if intent else None
    if plan:
        with open_source(source, policy=policy, key=key, out=out, work=work) as opened:
            name = opened.run(run)
            planned = (
                plan_ancestry(opened.place, name, part=part, intents=intent or (), **asked)
                if history
                else [plan_audit(opened.place, name, evals=evals, intent=one_intent, **asked)]
            )
        if as_json:
            emit_json({"runs": [one.to_json() for one in planned]} if history else planned[0].to_json())
        else:
            for line in (line for one in planned for line in plan_lines(one)):
                say(line)
        return
    with (
        open_source(source, policy=policy, key=key, out=out, work=work) as opened,
        counting("auditing") as report,
    ):
        file = None if round_file is None else read_file(round_file, MAX_FILE)
        options = {**asked, "screen": screen, "part": part, "beacon": beacon, "round_file": file, "report": report}
        name = opened.run(run)
        try:
            if history:
                done = audit_ancestry(opened.place, name, intents=intent or (), **options)
            else:
                one = run_audit(opened.place, name, intent=one_intent, evals=evals, **options)
                done = AncestryReport((one,), ())
        except KeyboardInterrupt:
            raise _stopped() from None
    if as_json:
        emit_json(ancestry_json(done) if history else audit_json(done.reports[0]))
    else:
        for each in done.reports:
            tell(each, opened.again(each.name))
        for boundary in done.boundaries:
            same = ", the state that the next run begins with, bit for bit" if boundary.outcome == "match" else ""
            say(f"boundary {boundary.parent}@{boundary.step} → {boundary.child}: {boundary.outcome}{same}")
    whole = all(unit.part is None for unit in done.reports[-1].units)
    if opened.named is not None and done.result == "match" and done.reports[-1].ended and whole:
        last = shlex.quote(done.reports[-1].name)
        note(f"next: ledger model register {last}-lm --run {last}")
    raise typer.Exit(EXIT_STATUS.get(done.result, 2))


def _stopped() -> Stopped:
    return Stopped("stopped; give the same command again, it goes on where it was", SIGINT)


def _range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,15}):([0-9]{1,15})", text)
    if match is None:
        raise BitwitnessError(f"--steps {text}: give the first and the last step, such as 10:20")
    first, last = int(match[1]), int(match[2])
    if first > last:
        raise BitwitnessError(f"--steps {text}: the first comes after the last; give {last}:{first}")
    return first, last
