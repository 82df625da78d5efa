"""Where each page is. Templates and drawings take every address from here, so that `base_url` is honoured."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Links:
    """Addresses below `base` ("/" or "/prefix/"); `database` is Datasette's own name of the ledger file."""

    base: str
    database: str
    style_version: str = ""

    def _to(self, *parts: object) -> str:
        return self.base + "/".join(quote(str(part), safe="") for part in parts)

    @property
    def home(self) -> str:
        return self.base

    @property
    def style(self) -> str:
        return self.static("bitwitness.css") + (f"?{self.style_version}" if self.style_version else "")

    def static(self, name: str) -> str:
        return self._to("-", "static-plugins", "bitwitness", name)

    @property
    def tables(self) -> str:
        """Datasette's pages of the raw tables."""
        return self._to(self.database)

    def table(self, name: str) -> str:
        return self._to(self.database, name)

    @property
    def runs(self) -> str:
        return self._to("runs")

    def run(self, name: str) -> str:
        return self._to("runs", name)

    def steps(self, name: str) -> str:
        return self._to("runs", name, "steps")

    def step(self, name: str, step: int) -> str:
        return self._to("runs", name, "steps", step)

    @property
    def audits(self) -> str:
        return self._to("audits")

    def audit(self, entry: int) -> str:
        return self._to("audits", entry)

    @property
    def models(self) -> str:
        return self._to("models")

    def model(self, name: str) -> str:
        return self._to("models", name)

    def version(self, name: str, version: int) -> str:
        return self._to("models", name, version)

    @property
    def datasets(self) -> str:
        return self._to("datasets")

    def dataset(self, entry: int) -> str:
        return self._to("datasets", entry)

    @property
    def keys(self) -> str:
        return self._to("keys")

    def key(self, keyid: str) -> str:
        return self._to("keys", keyid)

    @property
    def checkpoints(self) -> str:
        return self._to("checkpoints")

    def checkpoint(self, number: int) -> str:
        """The signed note as a file."""
        return self._to("checkpoints", f"{number}.txt")

    @property
    def entries(self) -> str:
        return self._to("entries")

    def entry(self, index: int | str) -> str:
        """The page of an entry, by index or by leaf hash."""
        return self._to("entries", index)

    def raw(self, index: int) -> str:
        """The signed bytes of an entry."""
        return self._to("entries", f"{index}.json")

    def proof(self, index: int) -> str:
        return self._to("entries", f"{index}.tlog-proof")
