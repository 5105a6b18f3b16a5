"""Runs the tests of pyverbs and writes the outcome of each to a file.

    conformance.py <directory of the tests> <file> <seed> [options of run_tests.py]

The seed is that of the random numbers which the tests use. Each line of the file is a test's name,
"ok" or how it ended, and why, separated by tabs. Tests for one vendor's cards are left out.
"""

import random
import sys
import unittest
from importlib.machinery import SourceFileLoader

VENDORS = ("tests.test_mlx5", "tests.test_efa", "tests.test_cuda")


class Outcomes(unittest.TestResult):
    """Writes outcomes as they come, so that a crash shows what came before it."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def write(self, test, outcome, why=""):
        lines = str(why).strip().splitlines()
        print(test.id(), outcome, lines[-1] if lines else "", sep="\t", file=self.file, flush=True)

    def addSuccess(self, test):
        self.write(test, "ok")

    def addSkip(self, test, reason):
        self.write(test, "skipped", reason)

    def addError(self, test, err):
        self.write(test, "error", f"{err[0].__name__}: {err[1]}")

    def addFailure(self, test, err):
        self.write(test, "failed", f"{err[0].__name__}: {err[1]}")


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        elif not item.id().startswith(VENDORS):
            yield item


def main():
    _, directory, outcomes, seed, *options = sys.argv
    random.seed(int(seed))
    # As run_tests.py does.
    sys.argv[1:] = options
    sys.path.insert(0, directory)
    from args_parser import parser

    tests = SourceFileLoader("tests", f"{directory}/__init__.py").load_module()
    parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    with open(outcomes, "w", encoding="utf-8") as file:
        unittest.TestSuite(cases(suite)).run(Outcomes(file))


main()
