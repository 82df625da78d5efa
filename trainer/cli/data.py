"""`ledger data`: build datasets, show them, and say which text a step of a run read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from bitwitness.ledger.cli.options import JsonOption, current_project
from bitwitness.ledger.cli.output import counted, emit_fields, emit_json, note, say
from bitwitness.ledger.files.sizes import SIZES, parse_size
from bitwitness.ledger.merkle import leaf_hash
from bitwitness.ledger.sqlite.lock import LedgerLocked

from .. import data as library
from ..data.builder import HELD_OUT_DEFAULT
from ..data.reads import SampleRead, reads_of_documents, reads_of_step, training_stream
from ..data.search import Found, documents_at_path, documents_with_text
from ..data.windows import Reading
from .progress import counting

_SHOWN_OFFSETS = 50

data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Training data: build a dataset, show it, and say which text a run read.",
)


@data.command()
def build(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC",
            help="Files, folders, glob patterns, or STDLIB for this machine's Python standard library.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the dataset.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json; bytes are the tokens without it.")
    ] = None,
    end_token: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="The tokenizer's token that ends a document.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Take only files that match; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Leave out files and folders; repeatable.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Stop before the document that exceeds this: {SIZES}.")
    ] = None,
    held_out: Annotated[
        str, typer.Option(metavar="FRACTION", help="Documents kept apart as NAME.held-out, by their content.")
    ] = HELD_OUT_DEFAULT,
    private: Annotated[bool, typer.Option("--private", help="Salt the digests; readable by the owner only.")] = False,
    license: Annotated[str | None, typer.Option(metavar="SPDX", help="Licence of the text.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Pass over files and lines that are not valid text.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Build a dataset from text and record its commitment in the ledger.

    Folders give their .txt, .md, .py and .jsonl files (field `text`), in the order of their paths.

    Example: ledger data build STDLIB --include '*.py' --max-bytes 4M --name pystdlib
    """
    project = current_project()
    options = library.BuildOptions(
        name=name,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        max_bytes=None if max_bytes is None else parse_size(max_bytes),
        held_out=held_out,
        private=private,
        license=license,
        skip_invalid=skip_invalid,
    )
    signer = project.signer("trainer")
    with counting("reading", "files") as report:
        built = library.build(
            project.data_dir,
            sources,
            options,
            signer=signer,
            tokenizer=library.load_tokenizer(tokenizer, end_token=end_token),
            progress=lambda done, files, taken: report(done, files),
        )
    manifests = [built.train] + ([built.held_out] if built.held_out is not None else [])
    datasets = [library.Dataset.open(project.data_dir, manifest.name) for manifest in manifests]
    notes = _notes(built, max_bytes)
    recorded = True
    try:
        with project.open_ledger(writable=True) as ledger:
            library.record(ledger, datasets)
    except LedgerLocked as error:
        recorded = False
        notes.append(f"not recorded in the ledger yet ({error}); the next run that uses the dataset records it")
    for text in notes:
        note(f"note: {text}")
    described = [{**_described(dataset), "recorded": recorded} for dataset in datasets]
    if json_output:
        emit_json({"datasets": described, "skipped": asdict(built.skipped), "notes": notes})
        return
    for fields in described:
        say(_line(fields))
    note(f'next: ledger train run.toml, with train = "{name}" in its [data]')


@data.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One dataset; all without it.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check every document against the commitment.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show the datasets of the project, or one of them.

    Example: ledger data show pystdlib --check
    """
    project = current_project()
    names = library.dataset_names(project.data_dir) if name is None else [name]
    described = []
    with project.open_ledger() as ledger:
        for each in names:
            dataset = library.Dataset.open(project.data_dir, each)
            entry = library.entry_bytes(dataset)
            fields = {**_described(dataset), "recorded": ledger.find(leaf_hash(entry)) is not None}
            if check:
                dataset.check_all()
                fields["checked"] = True
            described.append(fields)
    if json_output:
        emit_json(described if name is None else described[0])
    elif name is None:
        for fields in described:
            say(_line(fields))
        if not described:
            note("no datasets yet; `ledger data build` makes one")
    else:
        emit_fields({key: _text(value) for key, value in described[0].items()})


@data.command()
def where(
    run: Annotated[str, typer.Option(help="Name of the run, or the first digits of its hash.")],
    step: Annotated[int, typer.Option(help="The step, from 1.")],
    json_output: JsonOption = False,
) -> None:
    """Print the documents and byte ranges that a step of a run read.

    Example: ledger data where --run demo --step 60
    """
    from ..history import open_run

    project = current_project()
    with project.open_ledger() as ledger:
        history = open_run(ledger, run)
    stream = training_stream(history, project.data_dir)
    reads = reads_of_step(history, stream, step)
    if json_output:
        emit_json({"run": history.run, "step": step, "dataset": stream.dataset.name, "samples": _sample_rows(reads)})
        return
    say(f"step {step} of {history.name} read {counted(len(reads), 'window')} of {stream.dataset.name}")
    for read in reads:
        say(f"sample {read.sample}, window {read.window}")
        for reading in read.readings:
            say(f"  {_place(reading)}  bytes {reading.bytes[0]}-{reading.bytes[1]}")


@data.command()
def find(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Text to look for.")] = None,
    document: Annotated[
        str | None, typer.Option(metavar="PATH", help="Documents of this path, or that match this pattern.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Look in this dataset only.")] = None,
    run: Annotated[str | None, typer.Option(help="Look in the data of this run, and name the steps.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Documents to list at most.")] = 100,
    json_output: JsonOption = False,
) -> None:
    """Find documents by text or by path and, with --run, the steps of that run which read them.

    Example: ledger data find --document STDLIB/abc.py --run demo
    """
    if (text is None) == (document is None):
        raise library.DataError("give either TEXT or --document PATH")
    project = current_project()
    history = stream = None
    if run is not None:
        from ..history import open_run

        with project.open_ledger() as ledger:
            history = open_run(ledger, run)
        stream = training_stream(history, project.data_dir)
        datasets = [stream.dataset]
    else:
        names = library.dataset_names(project.data_dir) if name is None else [name]
        datasets = [library.Dataset.open(project.data_dir, each) for each in names]
    # The limit is of what is listed: which steps read the text is told of every document that has it.
    every = _search(datasets, text, document)
    found, rest = list(islice(every, limit)), (each.document for each in every)
    reads = None
    if history is not None and stream is not None:
        others = set(rest)
        reads = reads_of_documents(history, stream, {each.document for each in found} | others)
        more = bool(others)
    else:
        more = next(rest, None) is not None
    if more:
        note(f"note: only the first {counted(limit, 'document')}; --limit shows more")
    if json_output:
        result: dict[str, Any] = {"documents": [_without_empty(asdict(each)) for each in found], "more": more}
        if reads is not None:
            result["reads"] = [{"step": r.step, "sample": r.sample, "window": r.window} for r in reads]
        emit_json(result)
        return
    for each in found:
        say(f"{each.dataset}  {_place(each)}  {each.size} bytes{_offsets(each.offsets)}")
    if not found:
        note("no document found")
    if reads is not None and history is not None:
        steps = sorted({read.step for read in reads})
        by = counted(len(steps), "step")
        say(f"read by {by} of {history.name}: {', '.join(map(str, steps)) or 'none'}")


def _offsets(offsets: Sequence[int]) -> str:
    if not offsets:
        return ""
    more = ", …" if len(offsets) > _SHOWN_OFFSETS else ""
    return f"  at byte {', '.join(map(str, offsets[:_SHOWN_OFFSETS]))}{more}"


def _search(datasets: Sequence[library.Dataset], text: str | None, document: str | None) -> Iterator[Found]:
    for dataset in datasets:
        if text is not None:
            yield from documents_with_text(dataset, text.encode("utf-8", "surrogateescape"))
        elif document is not None:
            yield from documents_at_path(dataset, document)


def _described(dataset: library.Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    fields: dict[str, Any] = {
        "name": manifest.name,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "bytes": manifest.source_bytes,
        "tokenizer": manifest.tokenizer.to_json(),
        "visibility": "private" if manifest.private else "public",
        "dataset": manifest.dataset.to_json(),
        "entry": library.entry_leaf(dataset),
    }
    if manifest.license is not None:
        fields["license"] = manifest.license
    return fields


def _line(fields: dict[str, Any]) -> str:
    tokens = f"{fields['tokens']:,} tokens ({fields['tokenizer']['name']})"
    return (
        f"{fields['name']}: {counted(fields['documents'], 'document')}, {fields['bytes']:,} bytes, {tokens}, "
        f"root {fields['dataset']['root'][:16]}…" + ("" if fields["recorded"] else ", not in the ledger yet")
    )


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _place(at: Found | Reading) -> str:
    return f"{at.path}:{at.line}" if at.line else at.path


def _sample_rows(reads: Sequence[SampleRead]) -> list[dict[str, Any]]:
    return [
        {"sample": read.sample, "window": read.window, "documents": [asdict(part) for part in read.readings]}
        for read in reads
    ]


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value != ()}


def _notes(built: library.Built, max_bytes: str | None) -> list[str]:
    notes = list(built.notes)
    if built.stopped_at_limit:
        notes.append(f"stopped at --max-bytes {max_bytes}")
    if built.skipped.invalid:
        notes.append(f"{built.skipped.invalid} not valid and passed over, first: {built.skipped.first_invalid}")
    if built.skipped.empty:
        notes.append(f"{counted(built.skipped.empty, 'empty document')} passed over")
    if built.links_skipped:
        notes.append(f"{counted(built.links_skipped, 'symbolic link')} not followed")
    return notes
