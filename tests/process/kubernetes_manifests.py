#!/usr/bin/env python3
"""Manifests as Kubernetes' API would read them: kubernetes_manifests.py BIN_DIR CONFIGS_DIR.

Debian's Python client of Kubernetes is made of the API's own schema: each of its classes knows its fields, their types, and which ones
must be there. A field that the schema lacks is an error here, although a cluster would only warn of it.
"""
import os
import re
import sys
from pathlib import Path

import yaml

PYTHON = "/usr/bin/python3"  # Debian's, which has python3-kubernetes.
try:
    from kubernetes import client
except ModuleNotFoundError:
    if sys.executable == PYTHON:
        raise
    os.execv(PYTHON, [PYTHON, *sys.argv])

PRIMITIVES = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def check(value, type_name, where):
    """Raises a ValueError that names the place in the manifest if `value` is not what the schema calls `type_name`."""
    many = re.fullmatch(r"list\[(.*)\]|dict\(str, (.*)\)", type_name)
    if many and many[1]:
        expect(value, list, where)
        for index, one in enumerate(value):
            check(one, many[1], f"{where}[{index}]")
    elif many:
        expect(value, dict, where)
        for key, one in value.items():
            check(one, many[2], f"{where}.{key}")
    elif type_name in PRIMITIVES:
        expect(value, PRIMITIVES[type_name], where)
    elif type_name != "object":
        check_object(value, getattr(client, type_name), where)


def expect(value, kind, where):
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{where}: {value!r} is not of the type {kind}")


def check_object(value, kind, where):
    expect(value, dict, where)
    attributes = {field: attribute for attribute, field in kind.attribute_map.items()}
    for field, one in value.items():
        if field not in attributes:
            raise ValueError(f"{where}: {kind.__name__} has no field {field}")
        check(one, kind.openapi_types[attributes[field]], f"{where}.{field}")
    try:
        kind(**{attributes[field]: one for field, one in value.items()})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def check_manifest(document):
    version = document["apiVersion"].rpartition("/")[2]
    check_object(document, getattr(client, f"{version.capitalize()}{document['kind']}"), document["kind"])


def refusal(text, before, after):
    """What is said of the manifests in `text` after a mistake."""
    assert before in text, before
    try:
        for document in yaml.safe_load_all(text.replace(before, after)):
            check_manifest(document)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{after} was not noticed")


def main():
    text = (Path(sys.argv[2]) / "kubernetes_job.yaml").read_text()
    for document in yaml.safe_load_all(text):
        check_manifest(document)
    # What this test would say of the commonest mistakes.
    assert "no field completionMod" in refusal(text, "completionMode", "completionMod")
    assert "'4' is not of the type" in refusal(text, "completions: 4", "completions: '4'")
    assert "`containers`" in refusal(text, "containers:", "initContainers:")
    print("Kubernetes' schema knows every field")


if __name__ == "__main__":
    main()
