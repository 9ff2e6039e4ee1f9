"""What of the site is made of data when it is built: pages of names, tables, pictures.

docstrings   a docstring of this project's as Markdown
reference    the public names, and a page for each part of them
tables       settings, variables, errors, codes, and the names of other libraries
pictures     drawings of the allocator, of the traces in benchmarks/traces
extension    the Sphinx extension that puts all of it into the site
"""
