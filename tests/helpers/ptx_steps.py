"""Executes plain PTX of a kernel that reads one number and writes one or two, rounding as PTX says."""

import re
import struct
from fractions import Fraction
from math import isinf, isnan

SIGNIFICANT = {"f32": 24, "f64": 53}
LEAST = {"f32": -149, "f64": -1074}
FORMATS = {"f32": ("<f", "<I"), "f64": ("<d", "<Q")}


def to_bits(value, kind):
    number, word = FORMATS[kind]
    return struct.unpack(word, struct.pack(number, value))[0]


def of_bits(bits, kind):
    number, word = FORMATS[kind]
    return struct.unpack(number, struct.pack(word, bits))[0]


def rounded(exact, kind):
    """The number of a type that is nearest to a Fraction, of two the even one."""
    if exact == 0:
        return 0.0
    power = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    power -= abs(exact) < Fraction(2) ** power
    unit = Fraction(2) ** max(power - SIGNIFICANT[kind] + 1, LEAST[kind])
    return float(round(exact / unit) * unit)


def special(values):
    return any(isnan(each) or isinf(each) for each in values)


class Machine:
    """Registers by name: floats as float, integers as their bits."""

    def __init__(self, value, kind):
        self.registers, self.value, self.kind, self.stored = {}, value, kind, []

    def read(self, text, kind):
        if text.startswith("0f"):
            return of_bits(int(text[2:], 16), "f32")
        if text.startswith("0d"):
            return of_bits(int(text[2:], 16), "f64")
        if text.startswith("%"):
            return self.registers[text]
        return int(text) % (1 << int(kind[1:])) if kind[0] in "sub" else int(text)

    def step(self, name, places):
        """One instruction; the label to go to, or None."""
        parts = name.split(".")
        kind = parts[-1]
        method = getattr(self, f"do_{parts[0]}", None)
        assert method is not None, f"{name} is not known"
        return method(parts, kind, places)

    def floats(self, parts, kind, places, exact):
        given = [self.read(each, kind) for each in places[1:]]
        assert not special(given), parts
        made = exact(*map(Fraction, given))
        result = rounded(made, kind)
        if made == 0 and parts[0] == "mul":
            result = given[0] * given[1]
        elif made == 0 and parts[0] in ("add", "sub", "fma"):
            product = given[0] * given[1] if parts[0] == "fma" else given[0]
            last = -given[-1] if parts[0] == "sub" else given[-1]
            result = product + last if product == 0 == last else 0.0
        self.registers[places[0]] = result

    def integers(self, kind, places, exact):
        width = int(kind[1:])
        values = [self.read(each, kind) for each in places[1:]]
        self.registers[places[0]] = exact(*values) % (1 << width)

    def do_fma(self, parts, kind, places):
        self.floats(parts, kind, places, lambda x, y, z: x * y + z)

    def do_mul(self, parts, kind, places):
        self.floats(parts, kind, places, lambda x, y: x * y)

    def do_add(self, parts, kind, places):
        if kind[0] == "f":
            self.floats(parts, kind, places, lambda x, y: x + y)
        else:
            self.integers(kind, places, lambda x, y: x + y)

    def do_sub(self, parts, kind, places):
        if kind[0] == "f":
            self.floats(parts, kind, places, lambda x, y: x - y)
        else:
            self.integers(kind, places, lambda x, y: x - y)

    def do_neg(self, parts, kind, places):
        self.registers[places[0]] = -self.read(places[1], kind)

    def do_rcp(self, parts, kind, places):
        self.registers[places[0]] = 1.0 / self.read(places[1], kind)  # approximate on a GPU

    def do_and(self, parts, kind, places):
        if kind != "pred":
            self.integers(kind, places, lambda x, y: x & y)

    def do_or(self, parts, kind, places):
        self.integers(kind, places, lambda x, y: x | y)

    def do_xor(self, parts, kind, places):
        if kind == "pred":
            self.registers[places[0]] = self.registers[places[1]] ^ self.registers[places[2]]
        else:
            self.integers(kind, places, lambda x, y: x ^ y)

    def do_not(self, parts, kind, places):
        self.registers[places[0]] = not self.registers[places[1]]

    def do_shl(self, parts, kind, places):
        self.integers(kind, places, lambda x, y: x << y)

    def do_shr(self, parts, kind, places):
        self.integers(kind, places, lambda x, y: x >> y)

    def do_mov(self, parts, kind, places):
        target, source = places
        if kind == "pred":
            self.registers[target] = bool(int(source))
        elif target.startswith("{"):
            low, high = target.strip("{} ").split(", ")
            bits = to_bits(self.registers[source], "f64")
            self.registers[low], self.registers[high] = bits & 0xFFFFFFFF, bits >> 32
        elif source.startswith("{"):
            low, high = (self.registers[each] for each in source.strip("{} ").split(", "))
            self.registers[target] = of_bits(high << 32 | low, "f64")
        elif kind == "b32":  # between a float and its bits
            found = self.registers[source]
            self.registers[target] = (
                to_bits(found, "f32") if isinstance(found, float) else of_bits(found, "f32")
            )
        else:
            self.registers[target] = self.read(source, kind)

    def do_cvt(self, parts, kind, places):
        value, to = self.read(places[1], kind), parts[-2]
        if kind == "s32" and to[0] == "f":
            value -= (value >> 31) << 32
            result = rounded(Fraction(value), to)
        elif kind[0] in "su":
            result = value % (1 << int(to[1:])) if to[0] in "su" else rounded(Fraction(value), to)
        elif "rni" in parts:
            result = float(round(value))
        elif to[0] == "s":
            result = int(value) % (1 << 64)
        else:  # rzi
            result = float(int(value))
        self.registers[places[0]] = result

    def do_setp(self, parts, kind, places):
        left, right = (self.read(each, kind) for each in places[1:])
        if kind[0] == "s":
            half = 1 << int(kind[1:]) - 1
            left, right = ((each + half) % (2 * half) - half for each in (left, right))
        order = {"lt": left < right, "gt": left > right, "eq": left == right, "neu": left != right}
        self.registers[places[0]] = order[parts[1]]

    def do_selp(self, parts, kind, places):
        chosen = places[1] if self.registers[places[3]] else places[2]
        self.registers[places[0]] = self.read(chosen, kind)

    def do_ld(self, parts, kind, places):
        self.registers[places[0]] = self.value if parts[1] == "global" else 0

    def do_st(self, parts, kind, places):
        self.stored.append(self.registers[places[1]])

    def do_cvta(self, parts, kind, places):
        self.registers[places[0]] = 0

    def do_bra(self, parts, kind, places):
        return places[0]


def run(ptx, entry, value, kind):
    """What a kernel stores for the number that it loads."""
    body = ptx[ptx.index(f".entry {entry}(") :]
    body = body[body.index("\n{") : body.index("\n}\n")]
    body = re.sub(r"//[^\n]*|\.reg[^;]*;", "", body)
    lines = [line.strip() for line in re.split(r"[;\n]", body) if line.strip().strip("{}").strip()]
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.endswith(":")}
    machine, number = Machine(value, kind), 0
    while lines[number] != "ret":
        line, number = lines[number], number + 1
        if line.endswith(":"):
            continue
        if line.startswith("@"):
            guard, line = line.split(None, 1)
            if machine.registers[guard.lstrip("@!")] == ("!" in guard):
                continue
        name, rest = line.split(None, 1)
        label = machine.step(name, [each.strip() for each in re.split(r",\s*(?![^{]*\})", rest)])
        number = number if label is None else labels[label]
    return machine.stored
