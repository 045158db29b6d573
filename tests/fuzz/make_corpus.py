#!/usr/bin/env python3
"""Writes the fuzzer's corpus from the store's transcripts: make_corpus.py TRANSCRIPT_DIR CORPUS_DIR."""
import sys
from pathlib import Path

MAX_BYTES = 600


def pieces(connection, data):
    for at in range(0, len(data), 255):
        part = data[at:at + 255]
        yield bytes([connection, len(part)]) + part


def inputs(path):
    """A transcript in pieces of at most MAX_BYTES; its connections take turns on the fuzzer's four."""
    settings = bytes([2 if path.stem == "interim" else 0])
    out, names = settings, {}
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) < 3 or words[1] != ">":
            continue
        known = words[0] in names
        number = names.setdefault(words[0], len(names))
        data = bytes.fromhex("".join(words[2:]))
        # A name beyond the fourth takes over the connection of an older one.
        where = number % 4 | (0x80 if not known and number >= 4 else 0)
        step = b"".join(pieces(where, data))
        if len(out) + len(step) > MAX_BYTES and len(out) > 1:
            yield out
            out = settings
        out += step
    yield out


def main():
    transcripts, corpus = Path(sys.argv[1]), Path(sys.argv[2])
    corpus.mkdir(parents=True, exist_ok=True)
    for path in sorted(transcripts.glob("*.txt")):
        for number, data in enumerate(inputs(path)):
            (corpus / f"{path.stem}_{number}").write_bytes(data)


main()
