"""One module per operator, each with an `OPERATOR` that follows `attnops.bench.tables.Operator`.

A module whose name starts with an underscore belongs to the operator it is named after and is
imported in workers only, since it needs torch.
"""
