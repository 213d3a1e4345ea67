"""`mimo-cache demo`: a model that answers agent sessions, every turn with the cache and without it, bit for bit.

`model/` is that demo. `mimo-cache demo --canary` needs no model: real agent sessions of a serving engine's size go
through the cache, with every page checked against the tokens that wrote it. Of it, `command.py` is the command line and
`run.py` one run; `mix.py`, `trace.py` and `text.py` make the sessions, `workload.py` says what one is; `engine.py`
serves them, `lane.py` is one request in service; `canary.py` says what each row must hold, `device.py` holds the pages
and checks them; `audit.py` checks events and books; `single.py` sizes a single-pool cache; `report.py` and `html.py`
show the result. `progress.py` and the texts of `text.py` serve both.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Runs `mimo-cache demo` with these arguments and returns its exit code: 0 only when the result is valid."""
    if "--canary" in argv:
        from . import command  # noqa: PLC0415  the other demo needs none of it

        return command.main([word for word in argv if word != "--canary"])
    from . import model  # noqa: PLC0415

    return model.main(argv)
