"""How the shipped tiny checkpoint was trained: corpus, network, training loop, export and evaluation.

Run it with `python -m mimo_cache.models.training OUTDIR`; docs/tiny-model.md tells the story and the figures.
"""
