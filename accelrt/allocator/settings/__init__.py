"""The settings of the allocator.  DESIGN.md has the table of all keys.

keys       what each key may be in text, and what it is in bytes
typed      the same as an object with types, for users
settings   the string read into Settings, and merged with a change
apply      the settings put into force
"""
