"""The paper's convergence theory: Theorem 1's step sizes, and its lemmas and rate on quadratics.

bounds.py       Theorem 1's interval of step sizes, which is empty, and its constants
quadratics.py   the lemmas and the rate, checked with the real NGC on quadratics
pictures.py     both as four panels
"""
