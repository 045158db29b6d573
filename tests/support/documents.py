"""What the documents have in code: blocks, and pieces within lines."""
import re


def code(path):
    """(number of the line, language, text) of each block of a page, and of each piece of code within lines, whose language is None."""
    prose, block, language = [], None, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = re.match(r"```(.*)", line)
        prose.append("" if fence or block is not None else line)
        if fence and block is None:
            first, block, language = number + 1, [], fence.group(1)
        elif fence:
            yield first, language, "\n".join(block)
            block = None
        elif block is not None:
            block.append(line)
    text = "\n".join(prose)
    for span in re.finditer(r"`([^`]+)`", text):
        yield text.count("\n", 0, span.start()) + 1, None, " ".join(span.group(1).replace("\\|", "|").split())


def commands(path):
    """(number of the line, command) of each line of a page's blocks for a shell, which name no language. Without its comment; a line that
    goes on is one."""
    for number, language, text in code(path):
        for match in re.finditer(r"(?:\\\n|.)+", text if language == "" else ""):
            command = " ".join(re.sub(r"\s#\s.*", "", match.group().replace("\\\n", "")).split())
            if command:
                yield number + text.count("\n", 0, match.start()), command
