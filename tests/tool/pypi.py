"""What a test needs from PyPI, put into the build folder once.

SPDX-License-Identifier: Apache-2.0
"""
import shutil
import subprocess
import sys

SKIPPED = 77


def folder_of(build, requirement):
    """The folder where it lies with what it needs itself, for sys.path; None after a line: PyPI cannot be reached."""
    folder = build / "pypi" / requirement.replace("==", "-")
    if not folder.exists():
        half = folder.with_name(folder.name + ".half")  # what is left of it when this is ended
        shutil.rmtree(half, ignore_errors=True)
        pip = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", half,
                              requirement], capture_output=True, text=True, check=False)
        if pip.returncode:
            print(f"no {requirement}: {pip.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        half.rename(folder)
    return folder
