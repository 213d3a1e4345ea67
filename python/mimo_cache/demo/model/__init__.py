"""The demo that runs a model: agent sessions, each turn once through the cache and once without it.

`command.py` is the command line; `scenario.py` makes the sessions, `run.py` serves them with both and keeps the times;
`cluster.py` has the GCache nodes below, `phases.py` what is taken away and given back during a run, `sources.py` where
prompt tokens came from; `compare.py` says whether both computed the same; `sabotage.py` damages a cached row, so that
the check is checked; `report.py` and `html.py` show the result. Needs the extra `runner`.
"""

from .command import main

__all__ = ["main"]
