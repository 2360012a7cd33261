"""Indented blocks of docstrings and pages: tables of symbols and equations, set as such."""

from __future__ import annotations

import ast
import re
from html import escape
from pathlib import Path

from latex import inline, latex
from latex2mathml.converter import convert

#: An equation and its number.
NUMBERED = re.compile(r"^(?P<text>.*?)\s+\((?P<number>\d+|\*)\)$")
#: A row of a table of symbols; the columns are where its head has them.
HEAD = re.compile(r"^(symbol\s+)(meaning\s*)(in the model)?$")
#: An upright name of several letters, which the converter makes one element each.
_NAME = re.compile(r'<mrow>(?:<mi mathvariant="normal">\w</mi>){2,}</mrow>')
_LETTER = re.compile(r">(\w)<")
MATHEMATICS = set("Σ≤≥∈⊆∖∪∩∅∞→⇒∀∃⌈⌉⌊⌋−·×²")


def mathml(text: str, *, display: bool = False) -> str:
    """Return the MathML of LaTeX; the LaTeX stays inside, for whoever copies it."""
    shown = convert(text, display="block" if display else "inline")
    shown = _NAME.sub(lambda found: f"<mi>{''.join(_LETTER.findall(found[0]))}</mi>", shown)
    return shown.replace("<math ", f'<math alttext="{escape(text)}" ', 1)


def is_mathematics(lines: list[str]) -> bool:
    """Whether an indented block holds equations: something numbered, or a relation."""
    text = "\n".join(lines)
    if any(mark in text for mark in ("$ ", ">>>", "│", "stagecut ", "import ")):
        return False
    return any(NUMBERED.match(line) for line in lines) or bool(MATHEMATICS & set(text))


def indented(text: str) -> list[tuple[bool, list[str]]]:
    """Cut a text into stretches of indented and of other lines; blank lines stay where they are."""
    stretches: list[tuple[bool, list[str]]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        inside = line.startswith("    ") and not fenced
        if (stretches and not line.strip()) or (stretches and stretches[-1][0] == inside):
            stretches[-1][1].append(line)
        else:
            stretches.append((inside, [line]))
    return stretches


def symbol_table(lines: list[str]) -> str:
    """Return the HTML of a table: symbol, meaning, name in the exported model."""
    head = HEAD.match(lines[0].strip())
    assert head is not None
    second = len(head[1])
    third = second + len(head[2]) if head[3] else None
    names = ["symbol", "meaning", *(["in the model"] if head[3] else [])]
    rows = "".join(f"<th>{name}</th>" for name in names)
    for line in lines[1:]:
        row = line[4:]
        symbol, meaning = row[:second], row[second:third]
        if third is not None and row[third - 1 : third].strip():  # a meaning wider than its column
            meaning = re.split(r"\s{2,}", row[second:].strip())[0]
        if second and not row[second - 1 : second].isspace():  # a symbol wider than its column
            symbol, meaning = re.split(r"\s{2,}", row.strip(), maxsplit=1)
            if third is not None:
                meaning = re.split(r"\s{2,}", meaning)[0]
        name = row.rstrip()[third:] if third is not None else ""
        if third is not None and row[third - 1 : third].strip():
            name = next(iter(re.split(r"\s{2,}", row[second:].strip())[1:]), "")
        cells = [mathml(latex(symbol.strip())), with_mathematics(meaning.strip())]
        if third is not None:
            cells.append(f"<code>{escape(name.strip())}</code>" if name.strip() else "")
        rows += "</tr><tr>" + "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<div class="scrolls"><table class="symbols"><tr>{rows}</tr></table></div>'


def sentences(text: str) -> str:
    """Return Markdown with the symbols of its prose as mathematics; code stays as it is."""
    parts = re.split(r"(```.*?```|`[^`]*`|\]\([^)]*\))", text, flags=re.DOTALL)
    for i in range(0, len(parts), 2):
        pieces = re.split(r"\$([^$\n]+)\$", inline(parts[i]))
        parts[i] = "".join(mathml(p) if k % 2 else p for k, p in enumerate(pieces))
    return "".join(parts)


def with_mathematics(text: str) -> str:
    """Return the HTML of a sentence, its symbols as mathematics."""
    parts = re.split(r"\$([^$]+)\$", inline(text))
    said = [mathml(part) if i % 2 else escape(part) for i, part in enumerate(parts)]
    emphasised = re.sub(r"\*(\w+)\*", r"<em>\1</em>", "".join(said))
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", emphasised)


def equations(lines: list[str], rules: dict[str, str] | None = None, prefix: str = "") -> str:
    """Return the HTML of a block of equations, numbers and the rules that state them beside."""
    rows = []
    for line in lines:
        if not line.strip():
            continue
        match = NUMBERED.match(line.strip())
        text, number = (match["text"], match["number"]) if match else (line.strip(), "")
        rule = (rules or {}).get(number, "")
        cells = [
            mathml(latex(text.strip()), display=False),
            f"<code>{escape(rule)}</code>" if rule else "",
            f"({number})" if number else "",
        ]
        anchor = f' id="{prefix}{number}"' if number and prefix else ""
        rows.append(f"<tr{anchor}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="scrolls"><table class="equations">{"".join(rows)}</table></div>'


def typeset(text: str, rules: dict[str, str] | None = None, prefix: str = "") -> str:
    """Return Markdown with its indented blocks of symbols and equations as HTML."""
    out: list[str] = []
    in_list = False
    for inside, lines in indented(text):
        if not inside:
            content = [line for line in lines if line.strip()]
            in_list = bool(content) and bool(re.match(r"\s*([-*]|\d+\.)\s", content[-1]))
            out.append(sentences("\n".join(lines)))
        elif in_list:
            out.append(sentences("\n".join(lines)))
        else:
            out += [_block(block, rules, prefix) for block in _paragraphs(lines)]
    return "\n".join(out)


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """Cut a block at its blank lines."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def _block(lines: list[str], rules: dict[str, str] | None, prefix: str) -> str:
    """Return a block of symbols or equations as HTML, and any other as it is."""
    if HEAD.match(lines[0].strip()):
        return f"\n{symbol_table(lines)}\n"
    if is_mathematics(lines):
        return f"\n{equations(lines, rules, prefix)}\n"
    return "\n".join(["", *lines, ""])


def rules_of(path: Path) -> dict[str, str]:
    """Return the name of the rule that states each equation of a module, by number."""
    named: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            numbers = re.match(r"\(((?:\d+)(?:(?:, | and |\) and \(|\), \()\d+)*)\)", _said(node))
            for number in re.findall(r"\d+", numbers[1]) if numbers else ():
                named.setdefault(number, node.name.strip("_"))
    return named


def _said(node: ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""
