"""`tandem` from outside: its codes bit for bit, its output against float64, its manners with bad input.

SPDX-License-Identifier: Apache-2.0

usage: test_tool.py BUILD_FOLDER [unittest arguments]
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from tool import codes, rig
from tool.bench import Bench
from tool.calibrate import Calibrate
from tool.codes import Codes, Cuda, Hopper, Oracle
from tool.manual import FirstSteps, Manual
from tool.models import Fetch, Generate, Numbers, Tokenize
from tool.npc import Cards, Conversations, Tokens
from tool.plan import Plan
from tool.results import Accuracy, Runs
from tool.run import Run
from tool.words import Words

if __name__ == "__main__":
    with rig.folder:
        result = unittest.main(argv=[sys.argv[0], *sys.argv[2:]], exit=False).result
    bad = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    print(
        f"test_tool: {result.testsRun - skipped} tests, {bad} failed, {skipped} skipped (they need a CUDA device), "
        f"{codes.compared} codes and scales bit-equal to numpy"
    )
    sys.exit(1 if bad or result.testsRun == skipped else 0)
