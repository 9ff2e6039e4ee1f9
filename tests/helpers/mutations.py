"""Damage to files, as readers of untrusted ones meet it."""


def mutated(chance, content):
    """A copy with one to eight changes of the sort that breaks formats."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        place, length = chance.randrange(len(data)), chance.choice((1, 2, 4, 8, 30))
        kind = chance.randrange(5)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place : place + length] = chance.choice((b"\xff", b"\0", b"\x7f")) * length
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = chance.randbytes(length)
        else:
            source = chance.randrange(len(data))
            data[place : place + length] = data[source : source + length]
        if len(data) < 2:
            break
    return bytes(data)
