"""`python -m mimo_cache.models.training OUTDIR`: trains the tiny model. Needs torch."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from . import data
from .settings import Recipe, Shape
from .train import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mimo_cache.models.training", description=__doc__)
    parser.add_argument("out", type=Path, help="directory for the run's state and the finished checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the state in OUT")
    parser.add_argument("--steps", type=int, help="total steps; the phases shrink or grow in proportion")
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = dataclasses.replace(Recipe(), seed=args.seed)
    if args.steps:
        recipe = recipe.scaled(args.steps)
    corpus = data.load()
    sizes = sum(len(d) for d, _ in corpus.train), sum(map(len, corpus.held_out))
    print(f"corpus {corpus.digest}: {sizes[0]} bytes to train on, {sizes[1]} held out", flush=True)
    train(args.out, corpus, Shape(), recipe, args.resume, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
