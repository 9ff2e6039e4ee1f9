# A table that wraps another and makes a chosen call fail.  For tests; it is never chosen by itself.
