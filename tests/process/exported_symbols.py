#!/usr/bin/env python3
"""The shared libraries go on to export what they exported in each release with the same soname (worker/package/symbols/RELEASE.txt, never
changed): the names that the public headers declare in namespace ddp. If one is taken away, the soname must change (SOVERSION).

usage: exported_symbols.py BIN_DIR SOURCE_DIR [--record]      --record: writes the file of the present release
"""
import re
import subprocess
import sys
from pathlib import Path

bin_dir, package = Path(sys.argv[1]), Path(sys.argv[2]) / "worker" / "package"
LIBRARIES = ("libddp", "libddp_torch")


def words_of_public_headers():
    headers = [line for line in (package / "public_headers.txt").read_text().split() if line.endswith(".h")]
    return {word for header in headers for word in re.findall(r"\w+", (package.parents[1] / header).read_text())}


def public_names(library, words):
    """Without arguments, because their types differ between releases of LibTorch."""
    path = bin_dir.parent / "worker" / "package" / f"{library}.so"
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", "--demangle", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    # T: what is not inline. Whether an inline function is exported is the compiler's choice.
    names = re.findall(r"^\w+ T (ddp::(?:[A-Z]\w*(?:::~?\w+)*|\w+)(?:\[abi:\w+\])?)\(", listed, re.MULTILINE)
    names = {re.sub(r"\[abi:.*", "", name) for name in names}
    return sorted(f"{library} {name}" for name in names if name.split("::")[1] in words and "::Impl" not in name)


release = subprocess.run([bin_dir / "ddp-run", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
words = words_of_public_headers()
exported = [name for library in LIBRARIES for name in public_names(library, words)]
if sys.argv[3:] == ["--record"]:
    (package / "symbols" / f"{release}.txt").write_text("\n".join(exported) + "\n")
    sys.exit()
files = sorted((package / "symbols").glob("*.txt"))
if f"{release}.txt" not in [file.name for file in files]:
    sys.exit(f"exported_symbols: there is no {package}/symbols/{release}.txt; write it with --record")
for file in files:
    missing = sorted(set(file.read_text().split("\n")) - set(exported) - {""})
    if missing:
        sys.exit("exported_symbols: these names of release " + file.stem + " are gone, so programs that were built with it no longer start; "
                 "change SOVERSION in worker/package/CMakeLists.txt and begin a new folder of symbols:\n" + "\n".join(missing))
