# Nothing here is for cimport: the symbols that plugin.pyx exports are C's.
