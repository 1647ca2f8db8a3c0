"""What a test needs from PyPI, put into the build folder once.

SPDX-License-Identifier: Apache-2.0
"""
import fcntl
import shutil
import subprocess
import sys

SKIPPED = 77


def folder_of(build, requirement):
    """The folder where it lies with what it needs itself, for sys.path; None after a line: PyPI cannot be reached."""
    folder = build / "pypi" / requirement.replace("==", "-")
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test may want it at the same time
        return folder if folder.exists() or fetch(requirement, folder) else None


def fetch(requirement, folder):
    half = folder.with_name(folder.name + ".half")  # what is left of it when this is ended
    shutil.rmtree(half, ignore_errors=True)
    pip = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", half,
                          requirement], capture_output=True, text=True, check=False)
    if pip.returncode:
        print(f"no {requirement}: {pip.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return False
    half.rename(folder)
    return True
