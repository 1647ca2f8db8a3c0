"""Makes the bindings for C++ and Python from the public headers, or tells which of them lag behind.

SPDX-License-Identifier: Apache-2.0

usage: generate.py [--check]
"""
import sys

import cxx
import headers
import python

FILES = {"engine_plugin/include/tandem/tandem.hpp": cxx.tandem_hpp,
         "engine_plugin/include/tandem/vulkan.hpp": cxx.vulkan_hpp,
         "engine_plugin/python/tandem/_api.py": python.api}


def main():
    read = headers.read()
    behind = 0
    for name, make in FILES.items():
        path, text = headers.ROOT / name, make(read)
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            print(f"{name} is not what the headers make of it: run engine_plugin/bindings/generate.py")
            behind += 1
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
