"""The equations of the lessons as LaTeX: the files have them in plain text, the pages typeset.

Each is found by its text. One that is no longer in its file stops the build with one sentence, and
so does a comment of one of these forms that has no entry here.
"""

import html
import re

from latex2mathml.converter import convert

CLIP = r"\min\bigl(\rho_{it} A_i,\ \mathrm{clip}(\rho_{it}, 1-\varepsilon, 1+\varepsilon) A_i\bigr)"
K3 = r"\beta \left(e^{d} - 1 - d\right)"
SOFTMAX = r"\mathrm{softmax}(\mathrm{logits} / T)"
ENTROPY = r"H = -\sum_v p_v \log p_v = \log Z - \sum_v p_v\, \mathrm{logit}_v"

# In prose: a block of its own, or within a sentence.
PROSE = {
    "nano_r1.py": {
        "A_i = (r_i - mean(r)) / (std(r) + 1e-4)": (
            r"A_i = \frac{r_i - \mathrm{mean}(r)}{\mathrm{std}(r) + 10^{-4}}"
        ),
        "L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i) + beta (exp(d) - 1 - d)": (
            rf"L_{{it}} = -{CLIP} + {K3}"
        ),
        "rho = pi(o_it) / pi_old(o_it)": (
            r"\rho_{it} = \frac{\pi(o_{it})}{\pi_{\mathrm{old}}(o_{it})}"
        ),
        "d = log pi_ref(o_it) - log pi(o_it)": (
            r"d = \log \pi_{\mathrm{ref}}(o_{it}) - \log \pi(o_{it})"
        ),
    },
    "variants.py": {
        "A = (r - baseline) / (scale + eps)": (
            r"A = \frac{r - \mathrm{baseline}}{\mathrm{scale} + \varepsilon}"
        ),
    },
}

# Comments in code, up to two spaces or the end: the rest of the line names the source.
COMMENTS = {
    "nano_r1.py": {
        "A_i = (r_i - mean(r)) / (std(r) + eps)": (
            r"A_i = \frac{r_i - \mathrm{mean}(r)}{\mathrm{std}(r) + \varepsilon}"
        ),
        "log pi(y) = log softmax(logits / T)_y": rf"\log \pi(y) = \log {SOFTMAX}_y",
        "H = -sum_v p_v log p_v = log Z - sum_v p_v logit_v": ENTROPY,
        "rho_it = pi(o_it) / pi_old(o_it)": (
            r"\rho_{it} = \frac{\pi(o_{it})}{\pi_{\mathrm{old}}(o_{it})}"
        ),
        "L_it = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)": rf"L_{{it}} = -{CLIP}",
        "L_it = L_it + beta (exp(d) - 1 - d)": rf"L_{{it}} \leftarrow L_{{it}} + {K3}",
        "1/|o_i| sum_t L_it": r"\frac{1}{|o_i|} \sum_t L_{it}",
        "1/N sum_i": r"\frac{1}{N} \sum_i",
        "p = softmax(logits / T)": rf"p = {SOFTMAX}",
    },
    "variants.py": {
        "L = -A log pi": r"L = -A \log \pi",
        "L = -rho A": r"L = -\rho A",
        "s_i = (pi(o_i) / pi_old(o_i))^(1/|o_i|)": (
            r"s_i = \left(\frac{\pi(o_i)}{\pi_{\mathrm{old}}(o_i)}\right)^{1/|o_i|}"
        ),
        "k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d": (
            r"k_1 = -d,\quad k_2 = \frac{d^2}{2},\quad k_3 = e^{d} - 1 - d"
        ),
        "H = log Z - sum_v p_v logit_v": r"H = \log Z - \sum_v p_v\, \mathrm{logit}_v",
        "r = r - min(1, max(0, (|o| - (max - buffer)) / buffer))": (
            r"r \leftarrow r - \min\Bigl(1, \max\bigl(0, "
            r"\frac{|o| - (\mathrm{max} - \mathrm{buffer})}{\mathrm{buffer}}\bigr)\Bigr)"
        ),
        "A_t = V(end of the segment of t) - V(its beginning)": (
            r"A_t = V(\mathrm{end\ of\ the\ segment\ of\ } t) - V(\mathrm{its\ beginning})"
        ),
    },
}


def typeset(latex, text, block):
    """MathML, with the plain text for those who do not see it."""
    math = convert(latex, display="block" if block else "inline")
    return math.replace("<math ", f'<math class="eq" alttext="{html.escape(text)}" ', 1)


def in_comment(line, file):
    """(plain text, MathML) of the equation that a comment line holds, or None."""
    found = re.fullmatch(r"\s*# (\S.*?)(?:,? which .*|  .*)?", line)
    if not found or found[1] not in COMMENTS.get(file, {}):
        return None
    return found[1], typeset(COMMENTS[file][found[1]], found[1], block=True)
