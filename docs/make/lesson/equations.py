"""nano_r1.py's equations as LaTeX. The file has them in plain text; the page typesets them.

An equation that is not in this list stays plain text on the page.
"""

CLIP = r"\min\bigl(\rho_{it} A_i,\ \mathrm{clip}(\rho_{it}, 1-\varepsilon, 1+\varepsilon) A_i\bigr)"
K3 = r"\beta \left(e^{d} - 1 - d\right)"
RATIO = r"\rho_{it} = \frac{\pi(o_{it})}{\pi_{\mathrm{old}}(o_{it})}"
ADVANTAGE = r"A_i = \frac{r_i - \mathrm{mean}(r)}{\mathrm{std}(r) + 10^{-4}}"
EQUATIONS = {
    # In prose.
    "A_i = (r_i - mean(r)) / (std(r) + 1e-4)": ADVANTAGE,
    "L_it = -min(rho A_i, clip(rho, 1 - eps, 1 + eps) A_i) + beta (exp(d) - 1 - d)": (
        rf"L_{{it}} = -{CLIP} + {K3}"
    ),
    "rho = pi(o_it) / pi_old(o_it)": RATIO,
    "d = log pi_ref(o_it) - log pi(o_it)": (
        r"d = \log \pi_{\mathrm{ref}}(o_{it}) - \log \pi(o_{it})"
    ),
    # In comments.
    "rho_it = pi(o_it) / pi_old(o_it)": RATIO,
    "L_it = -min(rho A, clip(rho, 1 - eps, 1 + eps) A)": rf"L_{{it}} = -{CLIP}",
    "L_it = L_it + beta (exp(d) - 1 - d)": rf"L_{{it}} \leftarrow L_{{it}} + {K3}",
    # Symbols.
    "pi_old(o_it)": r"\pi_{\mathrm{old}}(o_{it})",
    "pi(o_it)": r"\pi(o_{it})",
    "pi_old": r"\pi_{\mathrm{old}}",
    "pi_ref": r"\pi_{\mathrm{ref}}",
    "grad log pi": r"\nabla \log \pi",
    "grad rho": r"\nabla \rho",
    "grad pi": r"\nabla \pi",
    "exp(d) - 1 - d": r"e^{d} - 1 - d",
    "eps": r"\varepsilon",
    "o_it": r"o_{it}",
    "L_it": r"L_{it}",
    "r_i": r"r_i",
    "pi": r"\pi",
    "rho": r"\rho",
    "1/N sum_i 1/|o_i| sum_t L_it": r"\frac{1}{N} \sum_i \frac{1}{|o_i|} \sum_t L_{it}",
}
