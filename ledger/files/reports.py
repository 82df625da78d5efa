"""A verdict in the formats that pipelines read: JUnit XML and SARIF 2.1.0.

Both come from the same checks as the text and --json: {"name", "ok", "detail"} with "category" and "required" where a
verifier gives them. What could not be checked is never shown as passed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from .plain import plain

_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

Check = Mapping[str, Any]


def junit(checks: Sequence[Check], kind: str, target: str) -> str:
    """One test case for each check: wrong is a failure, a required one that was not made an error, others skipped.

    `kind`, what was verified, is a property of the suite.
    """
    cases = []
    failures = errors = skipped = 0
    for check in checks:
        said, about = plain(check["detail"]), ""
        if check["ok"] is False:
            failures += 1
            about = f"<failure message={quoteattr(said)}/>"
        elif check["ok"] is None and check.get("required", True):
            errors += 1
            about = f"<error message={quoteattr('could not be checked: ' + said)}/>"
        elif check["ok"] is None:
            skipped += 1
            about = f"<skipped message={quoteattr(said)}/>"
        else:
            about = f"<system-out>{escape(said)}</system-out>"
        group = quoteattr(f"bitwitness.{check.get('category', 'CRYPTO')}")
        cases.append(f"    <testcase classname={group} name={quoteattr(plain(check['name']))}>{about}</testcase>")
    counts = f'tests="{len(checks)}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    suite = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="ledger verify" {counts}>',
        f"  <testsuite name={quoteattr(plain(target))} {counts}>",
        f'    <properties><property name="kind" value={quoteattr(kind)}/></properties>',
        *cases,
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(suite) + "\n"


def sarif(checks: Sequence[Check], kind: str, target: str, code: int) -> str:
    """One result for each check, of kind pass, fail, open (required, not made) or informational.

    `kind`, what was verified, is a property of the run.
    """
    rules = list(dict.fromkeys(map(_rule, checks)))
    driver = {
        "name": "bitwitness",
        "version": version("bitwitness"),
        "rules": [{"id": rule, "shortDescription": {"text": rule}} for rule in rules],
    }
    results = []
    for check in checks:
        result = _kind(check)
        results.append(
            {
                "ruleId": _rule(check),
                "ruleIndex": rules.index(_rule(check)),
                "kind": result,
                "level": "error" if result == "fail" else "none",
                "message": {"text": plain(check["detail"])},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(target))}}}],
            }
        )
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "exitCode": code}],
        "results": results,
        "properties": {"kind": kind},
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(check: Check) -> str:
    return f"{check.get('category', 'CRYPTO')}/{check['name']}"


def _kind(check: Check) -> str:
    if check["ok"] is not None:
        return "pass" if check["ok"] else "fail"
    return "open" if check.get("required", True) else "informational"
