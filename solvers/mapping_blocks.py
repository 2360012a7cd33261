def block_bound(costs, least, upper, search, lower=0.0):
    return lower
