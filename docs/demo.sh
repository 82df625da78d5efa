#!/usr/bin/env bash
# The whole loop on real text. Every line that begins with $ is a command that works typed by hand.
set -euo pipefail

port=${PORT:-8765}

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() { printf '\033[36m$ %s\033[0m\n' "$*"; eval "$*"; }
fails_with() { # expected exit status, command
  local expected=$1 status=0
  shift
  printf '\033[36m$ %s\033[0m\n' "$*"
  eval "$*" || status=$?
  [ "$status" -eq "$expected" ] || { echo "expected exit status $expected, got $status" >&2; exit 1; }
  echo "(exit status $status)"
}

if [ -e demo ] && [ ! -e demo/.made-by-make-demo ]; then
  echo "$PWD/demo exists and was not made by this demo; move it away first" >&2
  exit 2
fi
rm -rf demo

say "A project: keys, a ledger, a trust policy, a run to start from"
run ledger init demo
touch demo/.made-by-make-demo
cd demo

say "Real text: this machine's Python library, 4 MB of it"
run "ledger data build STDLIB --include '*.py' --max-bytes 4M --name pystdlib"

say "Train; every step is signed and appended to the ledger"
run ledger train run.toml

say "Audit: replay sampled steps and those that always count, compare every bit, sign the result"
run ledger audit demo --sample 3

say "Release the model with its provenance, and verify it as a consumer would"
run ledger model register demo-lm --run demo
run ledger verify models/demo-lm/1 --policy trust.toml

say "One flipped byte of the weights is found, and the tensor is named"
run cp -r models/demo-lm/1 tampered
run "python3 -c \"f = open('tampered/model.safetensors', 'r+b'); f.seek(-1000, 2); b = f.read(1); f.seek(-1000, 2); f.write(bytes([b[0] ^ 1]))\""
fails_with 1 ledger verify tampered --policy trust.toml

say "Prove one step to anybody: a proof file that stands alone"
run ledger prove --run demo --step 60 --out step60.tlog-proof
run ledger verify step60.tlog-proof

say "Browse it"
run "ledger serve --port $port & server=\$!"
trap 'kill $server 2>/dev/null || true' EXIT
PORT=$port python3 - <<'PAGES'
import os
import time
import urllib.error
import urllib.request

for page in ("/", "/runs/demo", "/runs/demo/steps/60", "/audits", "/models/demo-lm/1"):
    for attempt in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['PORT']}{page}") as answer:
                print(f"GET {page}: {answer.status}, {len(answer.read())} bytes")
            break
        except urllib.error.URLError:
            time.sleep(0.1)
    else:
        raise SystemExit(f"no answer from {page}")
PAGES
kill "$server"
wait "$server" 2>/dev/null || true
trap - EXIT
say "Done. '. .venv/bin/activate && cd demo && ledger serve' opens it again."
