"""Trains the tiny model and writes its checkpoint. Needs torch and safetensors.

OUT becomes a checkpoint directory in the hub's format, with figures.json and the held-out text; OUT/run holds the state
of the run, which --resume goes on from.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

MOST_STEPS = 1_000_000


def main() -> int:
    """Returns the exit status: 2, with one sentence, when the run cannot start."""
    args = _arguments()
    missing = [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"training needs {' and '.join(missing)}; install mimo-cache[runner]", file=sys.stderr)
        return 2
    # Threads that wait by spinning slow each other down tenfold on a busy machine; torch reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from .train import StateError  # noqa: PLC0415  needs torch

    try:
        _run(args)
    except (StateError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mimo_cache.models.training", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, help="directory for the checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the state in OUT/run")
    parser.add_argument("--steps", type=_number(10, MOST_STEPS), help="steps of all phases, in proportion")
    parser.add_argument("--seed", type=_number(0, 2**31 - 1), help="seed of weights and batches (default 1)")
    parser.add_argument("--threads", type=_number(1, 256), default=2, help="threads of torch (default 2)")
    return parser.parse_args()


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not allowed, allowed is a whole number from {least} to {most}")
        return value

    return parse


def _run(args: argparse.Namespace) -> None:
    import torch  # noqa: PLC0415

    from . import data, evaluate, export  # noqa: PLC0415
    from .settings import Recipe, Shape  # noqa: PLC0415
    from .train import train  # noqa: PLC0415

    torch.set_num_threads(args.threads)
    recipe = Recipe() if args.seed is None else dataclasses.replace(Recipe(), seed=args.seed)
    if args.steps is not None:
        recipe = recipe.scaled(args.steps)
    corpus = data.load()
    _say(f"corpus {corpus.digest}: {corpus.size} bytes to train on, {sum(map(len, corpus.held_out))} held out")
    net, seconds = train(args.out / "run", corpus, Shape(), recipe, resume=args.resume, say=_say)
    _say("measuring; a minute or two")
    figures = evaluate.measure(net, corpus.held_out)
    export.write(net, args.out, figures["max_positions"])
    evaluate.write_held_out(args.out / evaluate.HELD_OUT, corpus.held_out)
    figures |= {
        "training": {
            "steps": recipe.steps,
            "seed": recipe.seed,
            "minutes": round(seconds / 60, 1),
            "corpus": corpus.digest,
            "corpus_bytes": corpus.size,
            "held_out_bytes": sum(map(len, corpus.held_out)),
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
        }
    }
    (args.out / evaluate.FIGURES).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    _say(f"{args.out}: {figures['bits_per_byte']} bits per byte held out, accept length {figures['accept_length']}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
