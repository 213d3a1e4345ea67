"""`mimo-cache generate`: text from a checkpoint, as it comes."""

from __future__ import annotations

import argparse
import json
import sys
import time

from mimo_cache.models.errors import need
from mimo_cache.models.progress import bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mimo-cache generate`."""
    parser.add_argument("--prompt", action="append", required=True, help="text to continue; may be given several times")
    parser.add_argument("--model", default="tiny", help='a hub checkpoint\'s directory, or "tiny", which comes along')
    parser.add_argument("--backend", default="torch", help="kernels: torch (default) or reference")
    parser.add_argument("--max-tokens", type=int, default=256, help="new tokens at most (default 256)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 for greedy (default)")
    parser.add_argument("--top-k", type=int, default=0, help="only the k likeliest tokens; 0 for all (default)")
    parser.add_argument("--top-p", type=float, default=1.0, help="only the likeliest tokens up to this probability")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default 0)")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the model's end token")
    parser.add_argument("--memory", default="256M", help="bytes of the KV pools, such as 512M or 8G (default 256M)")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object and stream nothing")
    parser.set_defaults(run=command)


def command(options: argparse.Namespace) -> int:
    """Runs it; prompts after the first reuse what the earlier ones left in the cache."""
    need("torch")
    from mimo_cache.runner import LLM, SamplingParams  # noqa: PLC0415  optional

    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        ignore_eos=options.ignore_eos,
    )
    llm = LLM(options.model, backend=options.backend, memory=options.memory, progress=bar())
    results = []
    for prompt in options.prompt:
        begin = time.perf_counter()
        first, ids, text, finish, report = 0.0, [], "", None, None
        if not options.json:
            print(prompt, end="", flush=True)
        for piece in llm.stream(prompt, params):
            first = first or time.perf_counter() - begin
            ids.append(piece.token_id)
            text += piece.text
            finish, report = piece.finish, piece.report
            if not options.json:
                print(piece.text, end="", flush=True)
        seconds = time.perf_counter() - begin
        if not options.json:
            print(flush=True)
        assert report is not None
        print(
            f"{report.prompt_tokens} prompt tokens, {report.usable} reused; {len(ids)} new; "
            f"first after {first * 1000:.0f} ms, {(len(ids) - 1) / max(1e-9, seconds - first):.0f} a second",
            file=sys.stderr,
        )
        results.append(
            {
                "prompt": prompt,
                "text": text,
                "token_ids": ids,
                "finish": finish,
                "prompt_tokens": report.prompt_tokens,
                "reused": report.usable,
                "misses": report.misses,
                "ttft_seconds": first,
                "seconds": seconds,
            }
        )
    if options.json:
        print(json.dumps({"model": options.model, "backend": options.backend, "completions": results}))
    return 0
