#!/usr/bin/env python3
"""Break the core on purpose and see whether the tests notice.

Each mutation replaces one exact text in one file of a copy of the tree, builds it there and runs the test target that
should catch it, then the rest of the quick suite if that one does not. Exit code 1 when a mutation survives, does not
compile, or names a text that is not there exactly once (the code moved on: rewrite the mutation).

    tests/mutations.py [--list] [--only WORD]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "mutations"
SUITE = ("peer_faults", "state_machine", "bad_input")
TIMEOUT_S = 900


@dataclass(frozen=True)
class Mutation:
    """One fault: what it is, where, and the test target that should catch it."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str


MUTATIONS: tuple[Mutation, ...] = ()


def copy_tree() -> Path:
    """Copies what the build needs."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for part in ("src", "tests", "benches"):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("Cargo.toml", "Cargo.lock"):
        shutil.copy2(ROOT / file, tree / file)
    # The last build here may be of a mutation: what is newer than it is built again.
    (tree / "src" / "lib.rs").touch()
    return tree


def cargo(tree: Path, target: str, run: bool) -> subprocess.CompletedProcess[str]:
    """Builds, or builds and runs, one test target in the copy."""
    command = ["cargo", "test", "--quiet", "--profile", "quick", "--test", target]
    env = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "build"), PROPTEST_MAX_SHRINK_ITERS="0", RUST_BACKTRACE="0")
    if not run:
        command.append("--no-run")
    return subprocess.run(command, cwd=tree, env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False)


def first_panic(output: str) -> str:
    """The first line that says what broke."""
    lines = output.splitlines()
    for i, line in enumerate(lines):
        if "panicked at" in line:
            return next((text.strip()[:110] for text in lines[i + 1 :] if text.strip()), line)
    return "(no panic)"


def try_mutation(tree: Path, mutation: Mutation) -> tuple[bool, str]:
    """Applies, runs and takes back one mutation: (caught, what happened)."""
    path = tree / mutation.file
    text = path.read_text()
    count = text.count(mutation.old)
    if count != 1:
        return False, f"STALE: its text is in {mutation.file} {count} times, not once"
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        targets = [mutation.caught_by, *(t for t in SUITE if t != mutation.caught_by)]
        build = cargo(tree, targets[0], run=False)
        if build.returncode != 0:
            error = next((line for line in build.stderr.splitlines() if line.startswith("error")), "error")
            return False, f"DOES NOT COMPILE: {error}"
        for target in targets:
            try:
                run = cargo(tree, target, run=True)
            except subprocess.TimeoutExpired:
                return True, f"caught by {target}: it never ended"
            if run.returncode != 0:
                return True, f"caught by {target}: {first_panic(run.stdout + run.stderr)}"
        return False, "SURVIVED"
    finally:
        path.write_text(text)


def main() -> int:
    """Runs the list; see the module's text."""
    parser = argparse.ArgumentParser(description="Deliberate faults that the suite must catch.")
    parser.add_argument("--list", action="store_true", help="name the mutations and stop")
    parser.add_argument("--only", default="", help="only mutations whose name contains this")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if args.only in m.name]
    if args.list:
        for m in chosen:
            print(f"{m.name:40} {m.file}")
        return 0
    tree = copy_tree()
    for target in SUITE:
        healthy = cargo(tree, target, run=True)
        if healthy.returncode != 0:
            print(f"the suite fails without any mutation, in {target}: {first_panic(healthy.stdout + healthy.stderr)}")
            return 1
    missed = 0
    for number, mutation in enumerate(chosen, 1):
        start = time.monotonic()
        caught, story = try_mutation(tree, mutation)
        missed += not caught
        print(f"[{number}/{len(chosen)}] {mutation.name}: {story} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
