# Nothing here is for cimport: the symbols that torch_plugin.pyx exports are C's.
