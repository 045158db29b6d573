#!/usr/bin/env python3
"""Compiles each header of worker/package/public_headers.txt alone: it finds what it needs of ours, whatever else is included
before it, and what it needs is on the list. public_headers.py BIN_DIR SOURCE_DIR

LibTorch's headers take some ten seconds, which is too long for each of ours that includes them. So in a build with LibTorch all
are compiled together, behind the headers that are not ours, each with what it includes of ours in a namespace of its own: no
header sees what another one has included. Which headers of the standard library and of LibTorch they need is not seen in this
way; the style rule public_includes sees to it. A build without LibTorch compiles each by itself, as far as it needs no LibTorch.
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

build, source = Path(sys.argv[1]).resolve().parent, Path(sys.argv[2]).resolve()
scratch = build / "public-headers"
cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE))
with_torch = cache.get("TORCH_INCLUDE_DIR") if cache.get("DDP_WITH_TORCH", "OFF") != "OFF" else None
OURS = re.compile(r'#include "([^"]+)"')
OTHERS = re.compile(r"#include <([^>]+)>")
DECLARED_OF_TORCH = re.compile(r"^namespace torch(?:::\w+)* \{\n(?:class \w+;\n)+\}$", re.M)
LIBTORCH = ("torch/", "ATen/", "c10/")


def listed():
    lines = (source / "worker/package/public_headers.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def closure(header, seen):
    """The header and all of ours that it includes, in the compiler's order."""
    if header not in seen:
        for included in OURS.findall((scratch / "include" / header).read_text()):
            closure(included, seen)
        seen.append(header)
    return seen


def others(header):
    return [name for each in closure(header, []) for name in OTHERS.findall((scratch / "include" / each).read_text())]


def in_a_namespace(header, number):
    """The header as the compiler sees it, without what is not ours."""
    text = [f"namespace alone_{number} {{"]
    for each in closure(header, []):
        body = (scratch / "include" / each).read_text()
        body = DECLARED_OF_TORCH.sub(lambda match: "\n" * match.group(0).count("\n"), body)
        body = re.sub(r"^template <>\nstruct std::.*$", "\n", body, flags=re.M)
        body = re.sub(r"^#(?:pragma once|include .*)$", "", body, flags=re.M)
        text += [f'#line 1 "{each}"', body]
    return "\n".join([*text, "}"])


def compile(name, text):
    file = scratch / f"{name}.cc"
    file.write_text(text)
    command = [cache["CMAKE_CXX_COMPILER"], "-std=c++20", "-fsyntax-only", "-I", scratch / "include"]
    if with_torch:
        for path in (with_torch, f"{with_torch}/torch/csrc/api/include"):
            command += ["-isystem", path] if path != "/usr/include" else []
    done = subprocess.run([*map(str, command), str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{name}:\n{done.stdout}" if done.returncode != 0 else None


def together(headers):
    includes = sorted({name for header in headers for name in others(header)})
    text = [f"#include <{name}>" for name in includes] + ['#include "common/base/check.h"']
    for header in headers:
        text += DECLARED_OF_TORCH.findall((scratch / "include" / header).read_text())
    return "\n".join(text + [in_a_namespace(header, number) for number, header in enumerate(headers)])


shutil.rmtree(scratch, ignore_errors=True)
for header in listed():
    copy = scratch / "include" / header
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.symlink_to(source / header)
if with_torch:
    failures = [compile("all", together(listed()))]
else:
    alone = [header for header in listed() if not any(name.startswith(LIBTORCH) for name in others(header))]
    failures = [compile(header.replace("/", "_"), f'#include "{header}"\n') for header in alone]
failures = list(filter(None, failures))
print("\n".join(failures) or f"{len(listed())} headers")
sys.exit(1 if failures else 0)
