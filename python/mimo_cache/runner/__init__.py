"""A small torch runner for MiMo-V2 models: `LLM(path).generate(prompts)`.

It reads hub checkpoints, keeps KV in the two pools that `PrefixCache` names pages of, and executes the cache's plans.
Needs the extra `runner` (torch, safetensors, tokenizers). `docs/runner.md` says how its parts fit together.
"""

from .engine import Engine
from .errors import RequestError
from .lane import Output, Tally
from .llm import LLM, Completion, Piece
from .memory import Pools
from .model import Model
from .sampling import SamplingParams
from .sources import Sources
from .tokenizer import Tokenizer

__all__ = [
    "LLM",
    "Completion",
    "Engine",
    "Model",
    "Output",
    "Piece",
    "Pools",
    "RequestError",
    "SamplingParams",
    "Sources",
    "Tally",
    "Tokenizer",
]
