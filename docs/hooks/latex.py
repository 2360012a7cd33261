"""The equations of docstrings and pages, written with Unicode characters, as LaTeX.

Docstrings are read in terminals and editors, so their equations are plain text: ``Σ_v m_v x_{v,d} ≤
M_d``. The site shows the same text set as mathematics, by this one translation.
"""

from __future__ import annotations

import re

SYMBOLS = {
    "Σ": r"\sum ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "−": "-",
    "·": r"\cdot ",
    "×": r"\times ",
    "∈": r"\in ",
    "∉": r"\notin ",
    "⊆": r"\subseteq ",
    "⊂": r"\subset ",
    "∖": r"\smallsetminus ",  # its character is in most fonts, that of \setminus in few
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "∞": r"\infty ",
    "→": r"\to ",
    "↦": r"\mapsto ",
    "⇒": r"\Rightarrow ",
    "⇔": r"\Leftrightarrow ",
    "∧": r"\wedge ",
    "∨": r"\vee ",
    "∀": r"\forall ",
    "∃": r"\exists ",
    "…": r"\ldots ",
    "⌈": r"\lceil ",
    "⌉": r"\rceil ",
    "⌊": r"\lfloor ",
    "⌋": r"\rfloor ",
    "‖": r"\Vert ",
    "√": r"\sqrt{}",
    "½": r"\tfrac12 ",
    "²": "^2",
    "³": "^3",
    "𝒮": r"\mathcal{S}",
    "′": "'",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "δ": r"\delta ",
    "Δ": r"\Delta ",
    "ε": r"\varepsilon ",
    "η": r"\eta ",
    "θ": r"\theta ",
    "κ": r"\kappa ",
    "λ": r"\lambda ",
    "μ": r"\mu ",
    "ν": r"\nu ",
    "π": r"\pi ",
    "ρ": r"\rho ",
    "σ": r"\sigma ",
    "τ": r"\tau ",
    "φ": r"\varphi ",
    "χ": r"\chi ",
    "ψ": r"\psi ",
    "ω": r"\omega ",
    "Ω": r"\Omega ",
    "%": r"\%",
    "#": r"\#",
    "&": r"\&",
    "$": r"\$",
}
OPERATORS = {"min", "max", "log", "exp", "gcd"}
#: The schedule's name, a name of letters (which a subscript may follow), a number, blanks, or one
#: character.
TOKEN = re.compile(r"1f1b|[A-Za-z]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
#: What looks like a symbol inside a sentence: a name with a subscript, which is a group in braces,
#: one letter or digit or, of a Greek letter, a word.
INLINE = re.compile(
    r"(?<![\w`\\.$])(?<!\w/)(?:[A-Za-z]+|[α-ωΑ-ΩΣ𝒮])_"
    r"(?:\{(?:[^{}]|\{[^{}]*\})*\}|(?:[A-Za-z0-9α-ω]|(?<=[α-ω]_)[a-z]+)(?![\w-]))"
    r"[*']?(?:\([^()\s]*\))?"
)


def latex(text: str) -> str:
    r"""Return the LaTeX of a line of mathematics.

    Examples
    --------
    >>> latex("Σ_v m_v x_{v,d} ≤ M_d")
    '\\sum _{v}m_{v}x_{v,d}\\le M_{d}'
    >>> latex("d = 0  where w_e > H")
    'd=0\\quad \\text{where }w_{e}>H'
    """
    return "".join(_parts(TOKEN.findall(text)))


def _parts(tokens: list[str]) -> list[str]:
    """Translate tokens, a group in braces as one."""
    out: list[str] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token in "_^" and i + 1 < len(tokens):
            group, i = _group(tokens, i + 1)
            out.append(f"{token}{{{''.join(_parts(group))}}}")
            continue
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        if token == "{":
            out.append(r"\{")
        elif token == "}":
            out.append(r"\}")
        elif token.isspace():
            out.append(r"\quad " if len(token) > 1 and out else "")
        elif token == "1f1b":
            out.append(r"\text{1f1b}")
        elif token in OPERATORS:
            out.append(rf"\{token} ")
        elif token == "minimise" or token == "maximise":
            out.append(rf"\text{{{token}}}\quad ")
        elif token.isascii() and token.isalpha() and len(token) > 1:
            if following in ("_", "(", "*") and token not in ("of", "for", "on", "if", "and", "or"):
                out.append(rf"\mathrm{{{token}}}")
            else:
                words, i = _words(tokens, i)
                out.append(words)
                continue
        elif token == "*" and i and not tokens[i - 1].isspace() and following in ("", " "):
            out.append("^{*}")
        else:
            out.append(SYMBOLS.get(token, token))
        i += 1
    return out


def _group(tokens: list[str], i: int) -> tuple[list[str], int]:
    """Return the tokens of a subscript that begins at `i`, and where to go on."""
    if tokens[i] != "{":
        return [tokens[i]], i + 1
    depth, first = 0, i + 1
    while i < len(tokens):
        depth += {"{": 1, "}": -1}.get(tokens[i], 0)
        i += 1
        if depth == 0:
            break
    return tokens[first : i - 1], i


def _words(tokens: list[str], i: int) -> tuple[str, int]:
    """Return a run of words as text: spaces inside and around them count."""
    text = " " if i and tokens[i - 1] == " " else ""
    while i < len(tokens):
        token = tokens[i]
        word = token.isascii() and token.isalpha() and len(token) > 1 and token not in OPERATORS
        word = word or (token == "a" and text.endswith(" "))
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        if not ((word and following not in ("_", "(")) or token == " "):
            break
        text += token
        i += 1
    return rf"\text{{{text}}}", i


def inline(text: str) -> str:
    r"""Return a sentence with its symbols as inline mathematics.

    Examples
    --------
    >>> inline("over units v, where x_{v,d} is 1; `x_{v,d}` stays")
    'over units v, where $x_{v,d}$ is 1; `x_{v,d}` stays'
    """
    return INLINE.sub(lambda match: f"${latex(match.group())}$", text)
