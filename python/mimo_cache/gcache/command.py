"""The command `mimo-cache gcache`: nodes on this machine, and a drill that kills one of them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from mimo_cache import InvalidArgument
from mimo_cache._parser import Parser
from mimo_cache.gcache.local import SHARED, local_nodes
from mimo_cache.gcache.signals import ENDS, exits_in_order, on_signals

MIB = 1 << 20
MOST_NODES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mimo-cache gcache`."""
    commands = parser.add_subparsers(dest="gcache_command", required=True, metavar="COMMAND", parser_class=Parser)
    up = commands.add_parser("up", help="start nodes on this machine and keep them running until ^C")
    up.add_argument("--folder", type=Path, default=SHARED / "mimo-gcache", help="their files; kept (%(default)s)")
    up.add_argument("--port", type=int, default=7401, help="port of the first node; 0: free ones (%(default)s)")
    up.add_argument("--memory", type=int, default=256, metavar="MIB", help="of each node, in MiB (%(default)s)")
    up.set_defaults(run=_up)
    drill = commands.add_parser("drill", help="store values, kill a node with -9, start it again, compare every byte")
    drill.add_argument("--values", type=int, default=10_000, help="how many, of 1 byte to 32 KiB (%(default)s)")
    drill.add_argument("--seed", type=int, default=1, help="of sizes and bytes (%(default)s)")
    drill.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    drill.set_defaults(run=_drill)
    for command in (up, drill):
        command.add_argument("--nodes", type=int, default=3, help="how many (%(default)s)")


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"--{name} is {value}, allowed is {least} to {most}")


def _names(count: int) -> list[str]:
    _check("nodes", count, 1, MOST_NODES)
    return [f"node-{n + 1}" for n in range(count)]


def _up(args: argparse.Namespace) -> int:
    names = _names(args.nodes)
    _check("port", args.port, 0, 65_536 - args.nodes)
    _check("memory", args.memory, 16, 1 << 30)
    args.folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    # From before the first node starts until the last one has ended: none is left behind.
    with (
        on_signals(end, signal.SIGINT, *ENDS),
        local_nodes(args.folder, names, args.memory * MIB, args.port) as nodes,
    ):
        print(f"export GCACHE_NODES={','.join(node.tcp for node in nodes)}", flush=True)
        print(f"{len(nodes)} nodes serve; ^C ends them, their values stay in {args.folder}", file=sys.stderr)
        while not ended.wait(0.2):
            for node in nodes:
                if node.process.poll() is not None:
                    print(f"{node.name} ended with {node.process.returncode} and is started again", file=sys.stderr)
                    node.start()
                    print(f"{node.name} serves again, with {node.objects} values", file=sys.stderr, flush=True)
    return 0


def _drill(args: argparse.Namespace) -> int:
    from mimo_cache.gcache import drill  # noqa: PLC0415  numpy and the client, which `up` does not need

    names = _names(args.nodes)
    _check("values", args.values, args.nodes, 1_000_000)
    _check("seed", args.seed, 0, (1 << 63) - 1)
    memory = drill.memory_of(args.values, args.nodes)

    with (
        exits_in_order(),
        tempfile.TemporaryDirectory(prefix="mimo-drill-", dir=SHARED if SHARED.is_dir() else None) as folder,
        local_nodes(Path(folder), names, memory) as nodes,
    ):
        result = drill.run(nodes, args.values, args.seed)
    if args.json:
        print(json.dumps(result))
    return 0 if result["equal"] == result["values"] else 1
