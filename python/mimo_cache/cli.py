"""The command `mimo-cache`: what every subcommand has in common.

Progress and logs go to stderr. With `--json` the last line of stdout is one JSON object. The exit code is 0 only when
the result is valid. An error is one plain sentence on stderr and exit code 2, never a traceback. `docs/cli.md` is the
contract that scripts depend on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import mimo_cache
from mimo_cache import generate
from mimo_cache._parser import Parser
from mimo_cache.replay import command as replay
from mimo_cache.replay import story
from mimo_cache.replay.convert import command as convert


def parser() -> argparse.ArgumentParser:
    """Builds the parser of the whole command."""
    top = Parser(prog="mimo-cache", description="KV cache for hybrid sliding-window language models.")
    top.add_argument("--version", action="version", version=f"mimo-cache {mimo_cache.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    replay.add_arguments(commands.add_parser("replay", help="a trace through a cache of a given size: its hit rate"))
    story.add_arguments(commands.add_parser("explain", help="why a request of a trace hit what it hit"))
    traces = commands.add_parser("trace", help="make traces").add_subparsers(
        dest="trace_command", required=True, metavar="COMMAND", parser_class=Parser
    )
    convert.add_arguments(traces.add_parser("convert", help="from another format to the one that replay reads"))
    generate.add_arguments(commands.add_parser("generate", help="text from a checkpoint, through the cache"))
    # These two read their own arguments; they stand here for --help.
    commands.add_parser("demo", add_help=False, help="a model with the cache and without it, bit for bit")
    commands.add_parser("bench", add_help=False, help="measure the cache against its peers")
    return top


def _run(argv: list[str]) -> int:
    if argv[:1] == ["demo"]:
        from mimo_cache import demo  # noqa: PLC0415  a replay needs none of it

        return demo.main(argv[1:])
    if argv[:1] == ["bench"]:
        from mimo_cache import bench  # noqa: PLC0415

        return bench.main(argv[1:])
    options = parser().parse_args(argv)
    return int(options.run(options))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: the process's arguments) and returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # A stream that was closed before the start is None; what goes there is lost, the exit code is not.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  lives to the end
    # What a terminal's encoding cannot show, in a text of a model or a name of a file, must not end the command.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout left; point it elsewhere so that the interpreter's last flush cannot fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (mimo_cache.MimoCacheError, OSError) as error:
        # Where not even this can be said, the exit code says it.
        with contextlib.suppress(OSError):
            print(f"mimo-cache: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("mimo-cache: interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
