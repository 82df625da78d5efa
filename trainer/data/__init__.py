"""Training data: from files to a committed dataset, and from a dataset to windows in a seed's order."""

from .builder import BuildOptions, Built, build
from .dataset import Dataset, dataset_names
from .entry import entry_bytes, entry_leaf, record
from .errors import (
    CannotWrite,
    DataError,
    DatasetDamaged,
    DocumentErased,
    DocumentTooLarge,
    MalformedLine,
    NameTaken,
    NoDocuments,
    NoSuchDataset,
    NotText,
    SourceUnreadable,
    TokenizerUnusable,
    TooShort,
)
from .manifest import Manifest
from .split import held_out_name
from .tokenizer import load_tokenizer
from .windows import Reading, Rows, WindowStream

__all__ = [
    "BuildOptions",
    "Built",
    "CannotWrite",
    "DataError",
    "Dataset",
    "DatasetDamaged",
    "DocumentErased",
    "DocumentTooLarge",
    "MalformedLine",
    "Manifest",
    "NameTaken",
    "NoDocuments",
    "NoSuchDataset",
    "NotText",
    "Reading",
    "Rows",
    "SourceUnreadable",
    "TokenizerUnusable",
    "TooShort",
    "WindowStream",
    "build",
    "dataset_names",
    "entry_bytes",
    "entry_leaf",
    "held_out_name",
    "load_tokenizer",
    "record",
]
