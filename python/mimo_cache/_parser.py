"""The argument parser of every command: an error is one sentence."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; try {self.prog} --help\n")
