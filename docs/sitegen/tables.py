"""Tables that are made of data: settings, variables, errors, codes, the names of other libraries."""

MADE = {}
