// Which colour an allocation has, and the colours of the page's theme.

const HUES = [
  "#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#ff8ab7", "#9c6b4e", "#97bbf5", "#b5bd4c",
  "#2b4699", "#b07f06", "#237a36", "#c2452f", "#7238b5", "#3b9280", "#c25283", "#6c4731", "#5b86c9", "#7e8528",
];
const NONE = HUES.length; // the colour of what has no stack, no tag

function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

const mixed = (one, other, part) => one.map((value, at) => Math.round(value + (other[at] - value) * part));
const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
const css = ([red, green, blue]) => `rgb(${red},${green},${blue})`;

class Theme {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["card", "line", "text", "faint", "accent", "reserved", "free", "warn"]) {
      this[name] = style.getPropertyValue(`--${name}`).trim();
    }
    const card = channels(this.card), dark = card[0] < 128;
    const hues = [...HUES.map(channels), dark ? [110, 119, 134] : [160, 167, 179]];
    const full = hues.map((hue) => (dark ? mixed(hue, card, 0.12) : hue));
    const pending = full.map((hue) => mixed(hue, card, 0.55));
    const edge = full.map((hue) => mixed(hue, dark ? [0, 0, 0] : [255, 255, 255], 0.42));
    const states = [full, pending, edge]; // by LIVE, PENDING, and the line between two allocations
    this.pixels = states.map((each) => Uint32Array.from(each, pixel));
    this.css = states.map((each) => each.map(css));
    this.ink = full.map(([r, g, b]) => (r * 0.299 + g * 0.587 + b * 0.114 > 140 ? "#10131a" : "#ffffff"));
    this.background = pixel(card);
    this.selected = pixel(dark ? [255, 255, 255] : [16, 19, 26]);
  }
}

// The allocations in classes by stack, tag, stream or pool; the largest classes have colours to themselves.
class Colours {
  constructor(device, mode) {
    const { allocations, recording } = device;
    this.mode = mode;
    this.device = device;
    const key = mode === "allocation" ? null : allocations[mode];
    this.of = new Uint8Array(device.allocationCount);
    this.keys = key;
    if (!key) {
      for (let each = 0; each < this.of.length; each++) this.of[each] = (each * 7) % HUES.length;
      return;
    }
    const totals = new Map(); // bytes times events: the area that a class has in the timeline
    for (let each = 0; each < key.length; each++) {
      const area = allocations.size[each] * (allocations.end[each] - allocations.begin[each]);
      totals.set(key[each], (totals.get(key[each]) || 0) + area);
    }
    const unnamed = (value) =>
      value < 0 || (mode === "stack" && !recording.framesOf(value).length) || (mode === "tag" && !recording.strings[value]);
    const byIndex = mode === "stream" || mode === "pool";
    const ranked = [...totals.keys()].sort((a, b) => (byIndex ? a - b : totals.get(b) - totals.get(a)));
    this.byKey = new Map();
    let rank = 0;
    for (const value of ranked) this.byKey.set(value, unnamed(value) ? NONE : rank++ % HUES.length);
    for (let each = 0; each < key.length; each++) this.of[each] = this.byKey.get(key[each]);
  }

  label(value) {
    const { device } = this, { recording } = device;
    if (this.mode === "stack") return recording.brief(value);
    if (this.mode === "frame") return recording.briefFrame(value);
    if (this.mode === "tag") return recording.strings[value] || "no tag";
    if (this.mode === "stream") return `stream ${device.streams[value]}`;
    return poolName(device, value);
  }
}

function poolName(device, pool) {
  const text = device.pools[pool];
  return text === "0, 0" ? "default pool" : `pool (${text})`;
}
