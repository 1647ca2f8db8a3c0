"""The parts of test_tool.py.

SPDX-License-Identifier: Apache-2.0
"""
