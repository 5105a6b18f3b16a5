"""Runs tests of Python's own and writes what became of each, by name, as JSON.

python_tests.py RESULT LEFT_OUT MODULE... [-- NAME...]

LEFT_OUT is a regular expression: tests whose name it matches are not run. If there are names, only
these tests are run.
"""

import errno
import faulthandler
import json
import re
import sys
import unittest

from test import support

# Of one test: then the traces of all threads are printed and the process ends.
TIMEOUT_S = 240
# How often a test may find that another program has taken its port.
TRIES = 3


class Result(unittest.TextTestResult):
    """The outcome of each test. One with subtests has the worst of theirs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.outcomes = {}
        # Tests bind to ports that were free when they looked. Another program may be faster.
        self.overtaken = []

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        self.outcomes.setdefault(test.id(), "passed")
        super().stopTest(test)

    def addError(self, test, error):
        super().addError(test, error)
        self.outcomes[test.id()] = "failed"
        if isinstance(error[1], OSError) and error[1].errno == errno.EADDRINUSE:
            self.overtaken.append(test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.outcomes[test.id()] = "failed"

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.outcomes[test.id()] = "failed"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcomes[test.id()] = "skipped"


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def main():
    path, left_out, *modules = sys.argv[1:]
    only = []
    if "--" in modules:
        at = modules.index("--")
        modules, only = modules[:at], modules[at + 1 :]
    names = [f"test.{module}" for module in modules]
    # Nothing but the suite may hold the tests, or what they have made stays and is searched by
    # each garbage collection.
    suite = unittest.TestSuite(
        test
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromNames(names))
        if not re.search(left_out, test.id()) and (not only or test.id() in only)
    )
    # Tests that would leave this host are skipped. Modules that need no more than loopback demand
    # the same resource when they are loaded.
    support.use_resources = []
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    result = runner.run(suite)
    outcomes = result.outcomes
    for _ in range(TRIES):
        if not result.overtaken:
            break
        again = [type(test)(test._testMethodName) for test in result.overtaken]
        result = runner.run(unittest.TestSuite(again))
        outcomes.update(result.outcomes)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(outcomes, file)


if __name__ == "__main__":
    main()
