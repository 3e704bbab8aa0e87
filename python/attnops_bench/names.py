"""What the names of the columns mean, for those who read a table."""

from __future__ import annotations

OWN = {
    "attnops": "this library",
    "attnops_b": "the same, with threads divided by batch",
    "attnops_bh": "the same, with threads divided by batch and heads",
    "attnops_bn": "the same, with threads divided by batch and pieces of the sequence",
    "attnops_inplace": "the same, written over its inputs",
    "attnops_int8": "the same, from a cache of int8",
    "attnops_table": "the same, with a table of cosines and sines made before",
}
OTHERS = {
    "composed": "from parts: md_lrpe_cosine of attnops, PyTorch's silu, flao of attnops",
    "loop": "PyTorch eager, a loop over the tokens",
    "toc_free": "PyTorch compiled, with cosines and sines that it gets for free; not a peer",
}
# Forms of a peer; each has a letter c behind it if it is compiled, and _up if it is upcast.
FORMS = {
    "to": "PyTorch",
    "ton": "PyTorch with keys and values made from their factors first",
    "ts": "PyTorch's scaled_dot_product_attention on keys and values made from their factors",
    "lao_to": "PyTorch, separate operations with autograd",
    "flao_to": "PyTorch with a backward written by hand, which keeps what `keep` says",
}


def meaning(column: str) -> str:
    """What a column of a table is; a KeyError for one that has no words here."""
    known = OWN | OTHERS
    if column in known:
        return known[column]
    form = column.removesuffix("_up")
    compiled = form not in FORMS
    words = FORMS[form.removesuffix("c")] if compiled else FORMS[form]
    how = "compiled" if compiled else "eager"
    kind = "upcast to float32" if column.endswith("_up") else "in the type of the tensors"
    return f"{words}, {how}, {kind}"
