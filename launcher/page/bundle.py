#!/usr/bin/env python3
"""Makes one HTML file of the page's parts, as C++: bundle.py OUT.cc LIBRARY.min.js... PART.css... PART.js... index.html

The styles and scripts go where index.html says `<!-- styles -->` and `<!-- scripts -->`, in the order in which they are given.
"""
import base64
import hashlib
import sys
from pathlib import Path

PIECE = 10_000  # Bytes in a string literal: compilers need not take longer ones.


def literals(data):
    """The bytes as C++ string literals."""
    for begin in range(0, len(data), PIECE):
        yield '    "' + "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\?' else f"\\{byte:03o}"
                                for byte in data[begin:begin + PIECE]) + '"\n'


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def main(out, *parts):
    texts = {".css": [], ".min.js": [], ".js": [], ".html": []}
    for part in parts:
        texts[".min.js" if part.endswith(".min.js") else Path(part).suffix].append(Path(part).read_text(encoding="utf-8"))
    if any("</script" in text for text in texts[".js"] + texts[".min.js"]):
        raise SystemExit("bundle.py: a script contains </script")
    # One script, so that the parts see each other and nothing outside does.
    script = "\n" + "\n".join(texts[".min.js"]) + "\n(() => {\n'use strict';\n" + "\n".join(texts[".js"]) + "\n})();\n"
    style = "\n" + "\n".join(texts[".css"])
    page = texts[".html"][0]
    for place, text in (("<!-- styles -->", f"<style>{style}</style>"), ("<!-- scripts -->", f"<script>{script}</script>")):
        if page.count(place) != 1:
            raise SystemExit(f"bundle.py: index.html has not one {place}")
        page = page.replace(place, text)
    policy = (f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; connect-src 'self'; img-src data:; "
              "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
    data = page.encode()
    Path(out).write_text(
        "// Made by bundle.py.\n"
        '#include "launcher/page/bundle.h"\n\n'
        "namespace ddp::page {\n\n"
        "const char kBundle[] =\n" + "".join(literals(data)) + "    ;\n"
        f"const std::size_t kBundleBytes = {len(data)};\n"
        f'const std::string_view kBundleHeaders = "Content-Security-Policy: {policy}\\r\\n";\n\n'
        "}  // namespace ddp::page\n", encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
