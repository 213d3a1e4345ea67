"""Traces through the cache: what it would have hit, how close to the best possible that is, and why a request missed.

The work is done in Rust, by the same core that serves (`mimo_cache._core`). `runs` calls it, `suite` runs a folder of
traces, `story` tells of single requests, `page` draws, `convert` makes traces of other formats; the commands are
`command`, `story` and `convert.command`.
"""

from .runs import best_split, explain, optimum, replay

__all__ = ["best_split", "explain", "optimum", "replay"]
