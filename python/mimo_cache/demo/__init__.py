"""`mimo-cache demo`: real agent sessions through the cache, with every page checked against the tokens that wrote it.

`command.py` is the command line and `run.py` one run; `mix.py`, `trace.py` and `text.py` make the sessions,
`workload.py` says what one is; `engine.py` serves them, `lane.py` is one request in service; `canary.py` says what
each row must hold, `device.py` holds the pages and checks them; `audit.py` checks events and books; `single.py`
sizes a single-pool cache; `report.py` and `html.py` show the result.
"""

from .command import main

__all__ = ["main"]
