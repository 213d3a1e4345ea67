"""A forked child may not use its parent's cache, nor hang on its locks."""

import os
from collections.abc import Callable

import mimo_cache
from helpers import NEXT, Steps, plain, tables
from mimo_cache import PrefixCache


def test_a_forked_child_is_refused(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    request = cache.request([1, 2, 3])
    calls: list[Callable[[], object]] = [
        lambda: cache.peek([1]),
        lambda: cache.request([1]),
        cache.stats,
        cache.check_integrity,
        request.peek,
        request.open,
        lambda: request.opened,
        request.tokens,
        lambda: seq.committed,
        lambda: seq.report,
        lambda: seq.commit(0),
        seq.finish,
        lambda: cache.fill(NEXT, [seq], *tables(1)),
        lambda: cache.retire(1),
        lambda: cache.commit_many([], [], []),
        lambda: cache.explain([1]),
        cache.drain_events,
        cache.snapshot,
        cache.dump,
        cache.clear,
        cache.take_copies,
    ]
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            for at, call in enumerate(calls, 1):
                try:
                    call()
                    code = at
                except mimo_cache.ForkedProcessError as error:
                    code = code or (0 if "parent" in str(error) else 200)
            code = code or (0 if "parent" in repr(seq) else 201)
            try:
                with seq:
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            calls.clear()
            del seq, request, cache  # Destructors leave the parent's locks alone.
            own = plain()
            Steps(own).serve(list(range(9)))
            own.check_integrity()
        except BaseException:
            code = code or 250
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    seq.commit(3)
    cache.check_integrity()
