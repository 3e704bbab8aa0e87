"""One module per operator, each with an `OPERATOR` that follows `attnops_bench.tables.Operator`.

A module whose name starts with an underscore belongs to the operator, or the operators, it is named
after. One that ends in `_torch` is imported in workers only, since it needs torch.
"""
