#!/usr/bin/env python3
"""Checks one rule of the tree: check_tree.py RULE SOURCE_DIR BIN_DIR. Prints each violation and exits 1 if there are any."""
import json
import re
import subprocess
import sys
from pathlib import Path

LEVELS = {
    "common/base": 0, "common/wait": 1, "common/process": 2, "common/config": 1, "common/auth": 1, "common/log": 1, "common/terminal": 1, "common/wire": 2, "common/net": 3, "common/store": 4,
    "launcher/page": 1, "launcher/rendezvous": 3, "launcher/replicas": 4, "launcher/etcd": 4, "launcher/server": 4, "launcher/ddp_rendezvous": 5,
    "launcher/machine": 3, "launcher/hosts/syntax": 1, "launcher/slurm/step": 2, "launcher/schedulers": 2, "launcher/flags": 4, "launcher/completion": 5, "launcher/plan": 5, "launcher/check/verdict": 1, "launcher/check": 6,
    "launcher/hosting": 6, "launcher/node": 7, "launcher/slurm": 8, "launcher/hosts": 8, "launcher/status": 7, "launcher/trace": 8, "launcher/ddp_run": 9,
    "agent/core": 3, "agent/process": 4, "agent/shell": 5,
    "worker/buckets": 1, "worker/data": 1, "worker/checkpoint": 3, "worker/engine_config": 1, "worker/tensorboard": 3,
    "worker/transport": 4, "worker/collectives": 5, "worker/runtime": 6, "worker/nccl": 6, "worker/trainer_launch": 7,
    "worker/ddp/tensors": 7, "worker/ddp/averaging": 8, "worker/ddp/modules": 8, "worker/ddp/hooks": 9, "worker/ddp/zero": 9,
    "worker/ddp/state": 10, "worker/ddp/replica": 10, "worker/ddp/logical": 11, "worker/ddp/diloco": 11, "worker/ddp/engine": 11, "worker/ddp/loop": 11,
    "worker/ddp/trainer": 12, "worker/python": 12,
    "worker/train/models": 13, "worker/train": 14, "worker/package": 14,
}
# Types that the transport shares with the folder above it would make a circle, and the NCCL groups lie beside the host's;
# these headers have no code.
ALLOWED = {("worker/transport", "worker/collectives/types.h"), ("worker/nccl", "worker/runtime/process_group.h")}
TORCH_FOLDERS = ("worker/ddp/", "worker/python/", "worker/train/", "worker/examples/", "tests/torch/", "bench/ddp_")
# The namespaces of a room: `ddp` and the folder's name, where this does not say otherwise for the folder or one above it.
NAMESPACES = {
    # The words of every room, and what users of the library type.
    "common/base": ("ddp",), "common/wait": ("ddp",), "common/process": ("ddp",), "worker/data": ("ddp",), "worker/ddp": ("ddp",),
    "agent": ("ddp::agent",), "launcher/ddp_rendezvous": ("ddp::daemon",), "launcher/ddp_run": ("ddp::run",),
    "launcher/hosts": ("ddp::hosts",), "launcher/check": ("ddp::check",), "launcher/slurm": ("ddp::slurm",), "worker/checkpoint": ("ddp::checkpoint",),
    "worker/engine_config": ("ddp::engine",), "worker/nccl": ("ddp::nccl", "ddp::cuda"), "worker/train": ("ddp::train",),
    "worker/python": ("ddp::python",), "worker/trainer_launch": ("ddp::trainer",),
}
# What reads time, waits, or acts on processes and sockets.
EFFECTS = ("asio", "spdlog", "thread", "fstream", "dirent.h", "poll.h", "spawn.h", "sys/resource.h", "sys/socket.h", "sys/syscall.h",
           "sys/wait.h")
PURE_FOLDERS = ("common/base", "common/wire", "launcher/page", "launcher/rendezvous", "launcher/replicas", "launcher/check/verdict", "agent/core", "worker/buckets")
DAEMONS = ("ddp-run", "ddp-top", "ddp-agent", "ddp-rendezvous", "ddp-checkpoint")
MAX_FUNCTION_LINES = 70
MAX_README_LINES = 150
TOP_FOLDERS = ("common", "launcher", "agent", "worker", "tests", "bench", "configs", "scripts", ".ci")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

NAMES_OF_INCLUDES = {
    "algorithm": r"std::(?:sort|min|max|find|find_if|all_of|any_of|fill|clamp)", "array": r"std::array", "atomic": r"std::atomic",
    "bit": r"std::(?:bit_cast|bit_floor)", "chrono": r"std::chrono::\w+", "condition_variable": r"std::condition_variable",
    "concepts": r"std::(?:same_as|derived_from|invocable|convertible_to)", "cstddef": r"std::(?:size_t|byte|max_align_t)",
    "cstdint": r"std::u?int(?:8|16|32|64)_t", "cstdio": r"std::FILE", "deque": r"std::deque", "exception": r"std::exception_ptr",
    "functional": r"std::function", "map": r"std::map", "memory": r"std::(?:(?:unique|shared|weak)_ptr|make_(?:unique|shared))",
    "mutex": r"std::(?:mutex|lock_guard|unique_lock|scoped_lock)", "new": r"std::launder", "optional": r"std::(?:optional|nullopt)",
    "ostream": r"std::ostream", "set": r"std::set", "span": r"std::span",
    "stdexcept": r"std::(?:runtime_error|logic_error|invalid_argument|out_of_range)", "string": r"std::(?:string|to_string)",
    "string_view": r"std::string_view", "system_error": r"std::(?:error_code|errc)", "thread": r"std::thread",
    "tuple": r"std::(?:tuple|apply)", "type_traits": r"std::(?:is_\w+_v|remove_cvref_t|invoke_result_t)",
    "utility": r"std::(?:move|forward|pair|exchange|as_const|declval|swap)", "variant": r"std::variant", "vector": r"std::vector",
    "fmt/format.h": r"fmt::\w+", "nlohmann/json.hpp": r"nlohmann::json", "ATen/core/Tensor.h": r"at::Tensor",
    "torch/nn/module.h": r"torch::nn::Module", "torch/optim/optimizer.h": r"torch::optim::Optimizer",
}

root, binaries = Path(sys.argv[2]), Path(sys.argv[3])
PUBLIC_HEADERS = root / "worker/package/public_headers.txt"
MANUAL = root / "launcher/ddp_run/MANUAL.md"


def sources(*folders, suffixes=(".h", ".cc")):
    for folder in folders or ("common", "launcher", "agent", "worker", "tests", "bench"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes:
                yield path


def name(path):
    return path.relative_to(root).as_posix()


def lines(path):
    return path.read_text().splitlines()


def includes(path):
    for number, line in enumerate(lines(path), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(2)


def folder_of(file_name):
    """The folder that has a level, or the file's own folder where none has."""
    folder = own = file_name.rpartition("/")[0]
    while folder and folder not in LEVELS:
        folder = folder.rpartition("/")[0]
    return folder or own


def levels():
    for path in sources("common", "launcher", "agent", "worker"):
        own = folder_of(name(path))
        if own not in LEVELS:
            if not own.startswith("worker/examples"):
                yield f"{name(path)}: {own} has no level; give it one in check_tree.py"
            continue
        for number, included in includes(path):
            other = folder_of(included)
            if other not in LEVELS or other == own or (own, included) in ALLOWED:
                continue
            if LEVELS[other] >= LEVELS[own]:
                yield f"{name(path)}:{number}: {own} (L{LEVELS[own]}) includes {included} (L{LEVELS[other]})"
            top, other_top = own.split("/")[0], other.split("/")[0]
            if other_top not in (top, "common"):
                yield f"{name(path)}:{number}: {top} includes {included} of {other_top}"


def libtorch_includes():
    for path in sources():
        if name(path).startswith(TORCH_FOLDERS):
            continue
        for number, included in includes(path):
            if included.startswith(("torch/", "ATen/", "c10/")):
                yield f"{name(path)}:{number}: includes {included}; LibTorch belongs into {', '.join(TORCH_FOLDERS)}"


def libtorch_linkage():
    found = False
    for program in DAEMONS:
        path = binaries / program
        if not path.exists():
            continue
        found = True
        listing = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            if re.search(r"lib(torch|c10|caffe2|gomp|openblas|ucp|ucs|uct|ucm)", line):
                yield f"{program} links {line.strip()}"
    if not found:
        yield f"none of {', '.join(DAEMONS)} is in {binaries}"


def coroutines():
    for path in sources():
        for number, line in enumerate(lines(path), 1):
            # A tensor's detach() is another thing.
            detaches = r"\.detach\(\)" if not name(path).startswith(TORCH_FOLDERS) else r"[Tt]hread_?\.detach\(\)"
            if re.search(r"\bco_(await|return|yield)\b|\basio::detached\b|" + detaches, line):
                yield f"{name(path)}:{number}: coroutines, asio::detached and detached threads are not used here"


def pure_cores():
    for path in sources(*PURE_FOLDERS):
        for number, included in includes(path):
            if included.startswith(EFFECTS):
                yield f"{name(path)}:{number}: a pure core includes {included}"
        for number, line in enumerate(lines(path), 1):
            if re.search(r"_clock::now\(|\bClock::now\(|\bgettimeofday\b|std::random_device", line):
                yield f"{name(path)}:{number}: a pure core takes time and randomness as arguments"


def public_headers():
    """The list is what an installation has, so what a listed header includes is on it, too. Programs include ddp.h or runtime.h, which
    have all of it."""
    listed, before = set(), ""
    for number, line in enumerate(lines(PUBLIC_HEADERS), 1):
        if not line or line.startswith("#"):
            before = ""  # Each part is sorted.
            continue
        if line <= before or line in listed:
            yield f"{name(PUBLIC_HEADERS)}:{number}: {line} is not in order"
        if not (root / line).exists():
            yield f"{name(PUBLIC_HEADERS)}:{number}: there is no {line}"
        listed.add(line)
        before = line
    for header in sorted(header for header in listed if (root / header).exists()):
        for number, included in includes(root / header):
            if included not in listed and (root / included).exists():
                yield f"{header}:{number}: a public header includes {included}, which is not in {name(PUBLIC_HEADERS)}"
    reached, left = set(), ["worker/package/ddp.h", "worker/package/runtime.h"]
    while left:
        header = left.pop()
        if header not in reached and (root / header).exists():
            reached.add(header)
            left += [included for _, included in includes(root / header)]
    for header in sorted(listed - reached):
        yield f"{header}: is public, and programs do not get it; include it in worker/package/ddp.h"


def public_includes():
    """What a public header names of the standard library or LibTorch, it includes, or one of ours that it includes does. Only by
    names: compilers do not tell, since LibTorch's headers include most of the standard library."""
    def closure(header, seen):
        if header not in seen and (root / header).exists():
            seen[header] = (root / header).read_text()
            for _, included in includes(root / header):
                closure(included, seen)
        return seen
    for header in lines(PUBLIC_HEADERS):
        if not header or header.startswith("#") or not (root / header).exists():
            continue
        all_of_it = "\n".join(closure(header, {}).values())
        code = re.sub(r"//.*|#include.*", "", (root / header).read_text())
        for needed, names in NAMES_OF_INCLUDES.items():
            found = re.search(rf"\b(?:{names})\b", code)
            # A class of LibTorch's may be declared instead.
            declared = found and re.search(r"^namespace torch::\w+ \{\n(?:class \w+;\n)*class " + found.group(0).split("::")[-1] + ";", all_of_it, re.M)
            if found and not declared and f"#include <{needed}>" not in all_of_it:
                yield f"{header}: names {found.group(0)} and does not include <{needed}>"


def headers():
    for path in sources(suffixes=(".h",)):
        first = next((line for line in lines(path) if line.strip()), "")
        if first != "#pragma once":
            yield f"{name(path)}: a header begins with #pragma once"


def header_names():
    """Two headers of the product with one file name are two things that a reader confuses."""
    found = {}
    for path in sources("common", "launcher", "agent", "worker", suffixes=(".h",)):
        if path.name in found:
            yield f"{name(path)}: {found[path.name]} has the same file name; say in the name what each is about"
        found[path.name] = name(path)


def function_length():
    """Google's format puts a namespace-level function's closing brace into column 0 and a method's into column 2."""
    for path in sources():
        text = lines(path)
        for indent in ("", "  "):
            start = None
            for number, line in enumerate(text, 1):
                body = line[len(indent):]
                if line.startswith(indent) and body and body[0] not in " }#/)" and body.rstrip().endswith("{"):
                    is_function = "(" in body or text[number - 2].startswith(indent + "    ")
                    start = number if is_function and not re.match(r"(namespace|class|struct|enum|extern|union)\b", body) else None
                elif line.startswith(indent + "}"):
                    if line == indent + "}" and start and number - start + 1 > MAX_FUNCTION_LINES:
                        yield f"{name(path)}:{start}: a function of {number - start + 1} lines, the limit is {MAX_FUNCTION_LINES}"
                    start = None


def one_definition():
    """A class of one name in one namespace is defined once: two in one program are undefined behaviour that nobody reports.
    Google's format puts what is in a namespace into column 0, and names the namespace where it ends."""
    found = {}
    for path in sources("common", "launcher", "agent", "worker"):
        if name(path).startswith("worker/examples/"):
            continue  # Programs of their own.
        namespaces = []
        for number, line in enumerate(lines(path), 1):
            if match := re.match(r"(?:inline )?namespace ?([\w:]*) ?\{$", line):
                namespaces.append(match.group(1) or "(unnamed)")
            elif re.match(r"\}  // namespace", line):
                namespaces.pop()
            elif match := re.match(r"(?:class|struct|union|enum class|enum)\s+(?:alignas\([^)]*\) )?(\w+(?:::\w+)*(?:<.*>)?)", line):
                qualified = "::".join([*namespaces, match.group(1)])
                is_declaration = line.endswith(";") and "{" not in line
                if is_declaration or "(unnamed)" in qualified:
                    continue
                if qualified in found:
                    yield f"{name(path)}:{number}: {qualified} is defined in {found[qualified]}, too"
                found[qualified] = f"{name(path)}:{number}"


def namespaces():
    """A private header's names lie in its room's namespace; `ddp` itself belongs to the public ones."""
    public = set(lines(PUBLIC_HEADERS))
    for path in sources("common", "launcher", "agent", "worker", suffixes=(".h",)):
        if name(path) in public or name(path).startswith(("worker/examples/", "worker/package/")):
            continue
        folders = [str(folder) for folder in Path(name(path)).parents]
        expected = next((NAMESPACES[folder] for folder in folders if folder in NAMESPACES), ("ddp::" + folders[0].split("/")[-1],))
        for number, line in enumerate(lines(path), 1):
            match = re.match(r"namespace (ddp[\w:]*) \{$", line)
            if match and not any(f"{match.group(1)}::".startswith(f"{one}::") for one in expected):
                yield f"{name(path)}:{number}: namespace {match.group(1)} in a private header of the room {' and '.join(expected)}"


def sleeps():
    for path in sources("tests"):
        if name(path).startswith("tests/support/"):
            continue
        for number, line in enumerate(lines(path), 1):
            # A script in a string may sleep, and a line that says why is believed: "// sleep: ...".
            if re.search(r"\bsleep_(for|until)\s*\(|(?<!time\.)\b(u|nano)?sleep\s*\(", line) and "// sleep:" not in line:
                yield f"{name(path)}:{number}: tests wait for a condition with a deadline (tests/support), they do not sleep"


def exit_codes():
    header = (root / "common/base/exit_codes.h").read_text()
    coded = {int(value) for value in re.findall(r"=\s*(\d+),", header)}
    table = {int(value) for value in re.findall(r"^\|\s*(\d+)\s*(?:\+[^|]*)?\|", MANUAL.read_text(), re.M)}
    for value in sorted(coded ^ table):
        yield f"exit code {value} is in {'exit_codes.h' if value in coded else name(MANUAL)} only"


def protocol_example():
    page = (root / "common/wire/PROTOCOL.md").read_text()
    match = re.search(r"bytes \(`(\{.*?\})`, (\d+) bytes\):\s*```\s*([0-9a-f\s]+)```", page)
    if not match:
        yield "PROTOCOL.md has no worked example of the expected form"
        return
    text, length, raw = match.group(1), int(match.group(2)), bytes.fromhex(match.group(3))
    if int.from_bytes(raw[:4], "little") != length or raw[4:].decode() != text or len(text) != length:
        yield f"PROTOCOL.md: the hex example is not the frame of {text}"
    elif json.loads(text)["type"] != "heartbeat":
        yield "PROTOCOL.md: the example is not a heartbeat"


def folder_purpose():
    for path in sorted(root.glob("*/*/CMakeLists.txt")):
        if path.parts[-3] in ("common", "launcher", "agent", "worker", "tests") and not path.read_text().startswith("# "):
            yield f"{name(path)}: begins with one sentence of purpose"
        if "filled below" in path.read_text():
            yield f"{name(path)}: has no content"


def readme_length():
    for path in sorted(root.rglob("README.md")):
        # Build folders lie in the tree, and may hold what others have written.
        if path.relative_to(root).parts[0] not in (*TOP_FOLDERS, "README.md"):
            continue
        length = len(lines(path))
        if length > MAX_README_LINES:
            yield f"{name(path)}: {length} lines, the limit is {MAX_README_LINES}; what it says belongs beside the code, or into a MANUAL.md"


def pointers_out_of_the_tree():
    """Whoever has the tree has all that it speaks of."""
    outside = re.compile(r"DESIGN\.md|\breference/\w+\.md|\bshared/(peers|reference|data)|\b[Ii]ssue #?\d")
    files = [path for path in root.iterdir() if path.is_file()]
    for folder in TOP_FOLDERS:
        files += [path for path in (root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in sorted(files):
        if path == Path(__file__).resolve():
            continue
        try:
            text = lines(path)
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text, 1):
            if match := outside.search(line):
                yield f"{name(path)}:{number}: '{match.group(0)}' is not in the tree; say here what it says"


def links():
    """Of pages to files and to sections of pages."""
    def anchors(path):
        titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    for page in sorted(path for folder in TOP_FOLDERS for path in (root / folder).rglob("*.md")) + sorted(root.glob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in target:
                continue
            file, _, section = target.partition("#")
            path = page.parent / file if file else page
            if not path.exists():
                yield f"{name(page)}: {target} leads nowhere"
            elif section and section not in anchors(path):
                yield f"{name(page)}: {target}: there is no such section"


def standing_commands():
    for needed in ("scripts/setup", "scripts/build", "scripts/quickstart", "scripts/test", ".ci/run", "bench/run"):
        path = root / needed
        if not path.exists() or not path.stat().st_mode & 0o100:
            yield f"{needed} is missing or not executable"
    if "scripts/test" not in (root / ".ci/run").read_text():
        yield ".ci/run does not call scripts/test"


violations = list(globals()[sys.argv[1]]())
print("\n".join(violations) or f"{sys.argv[1]}: ok")
sys.exit(1 if violations else 0)
