"""The version is that of the headers; and where TANDEM_LIBRARY_FILE names libtandem, the wheel has it, and is for such machines.

SPDX-License-Identifier: Apache-2.0
"""
import os
import pathlib
import re
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

LIBRARY = os.environ.get("TANDEM_LIBRARY_FILE")
API = (pathlib.Path(__file__).parent / "tandem/_api.py").read_text()
VERSION = ".".join(re.search(r"^VERSION = \((\d+), (\d+), (\d+)\)", API, re.M).groups())


class WithLibrary(build_py):
    def run(self):
        super().run()
        if LIBRARY:
            shutil.copyfile(LIBRARY, pathlib.Path(self.build_lib) / "tandem/libtandem.so.0")


class OfMachine(Distribution):
    def has_ext_modules(self):
        return bool(LIBRARY)


class AnyPython(bdist_wheel):
    """It is opened by ctypes, so any Python will do."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2] if LIBRARY else "any")


setup(version=VERSION, cmdclass={"build_py": WithLibrary, "bdist_wheel": AnyPython}, distclass=OfMachine)
