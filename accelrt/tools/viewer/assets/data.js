// The recording: columns as typed arrays, what is live after an event, and figures as text.

const KINDS = { i4: Int32Array, u1: Uint8Array, f8: Float64Array, u8: Uint32Array };
const PLAIN = 0, EXPANDABLE = 1, STITCHED = 2;
const LIVE = 0, PENDING = 1;
const $ = (id) => document.getElementById(id);

// Makes an element with a text and children; texts of a snapshot reach the page as text nodes alone.
function make(name, options = {}, ...children) {
  const { text, ...others } = options;
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(others)) {
    if (key in made && key !== "role") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function bytes(count) {
  const sign = count < 0 ? "-" : "";
  let size = Math.abs(count);
  if (size < 1024) return `${sign}${size} B`;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    size /= 1024;
    if (size < 1023.95 || unit === "TiB") {
      return `${sign}${size.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0)} ${unit}`;
    }
  }
}

const whole = new Intl.NumberFormat("en-US");
const exact = (count) => `${bytes(count)} (${whole.format(count)} B)`;

function seconds(us) {
  if (us < 1000) return `${us.toFixed(0)} µs`;
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e5 ? 2 : 1)} ms`;
  return `${(us / 1e6).toFixed(us < 1e8 ? 3 : 1)} s`;
}

// Addresses are pairs of 32 bits: a double is exact up to 2**53 only.
const place = (column, index) => column[2 * index + 1] * 4294967296 + column[2 * index];
function hex(column, index) {
  const high = column[2 * index + 1], low = column[2 * index].toString(16);
  return "0x" + (high ? high.toString(16) + low.padStart(8, "0") : low);
}

// The first place from which on a sorted column's values are at least value.
function lowerBound(column, value, first = 0, last = column.length) {
  while (first < last) {
    const middle = (first + last) >> 1;
    if (column[middle] < value) first = middle + 1;
    else last = middle;
  }
  return first;
}

async function unpack() {
  const text = $("data").textContent.trim();
  $("data").remove();
  const packed = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Recording(await new Response(stream).arrayBuffer());
}

class Recording {
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const column = ([kind, from, count]) =>
      new KINDS[kind](buffer, 4 + length + from, kind === "u8" ? 2 * count : count);
    const columns = (described) =>
      Object.fromEntries(Object.entries(described).map(([name, each]) => [name, column(each)]));
    this.strings = header.strings;
    this.settings = header.settings;
    this.difference = header.difference;
    [this.files, this.lines, this.names] = header.frames.map(column);
    this.stackEnds = column(header.stack_ends);
    this.stackFrames = column(header.stack_frames);
    this.devices = header.devices.map((each) => new Device(this, each, columns));
    this.searched = [];
  }

  // The frames of a stack, innermost first.
  framesOf(stack) {
    return this.stackFrames.subarray(stack ? this.stackEnds[stack - 1] : 0, this.stackEnds[stack]);
  }

  frame(index) {
    return {
      name: this.strings[this.names[index]] || "?",
      file: this.strings[this.files[index]] || "",
      line: this.lines[index],
    };
  }

  where(index) {
    const { file, line } = this.frame(index);
    return line ? `${file}:${line}` : file;
  }

  // The frames of a stack from the one on that called accelrt; all of them where there are no others.
  callersOf(stack) {
    const frames = this.framesOf(stack);
    const start = frames.findIndex((frame) => !this.isInner(frame));
    return start > 0 ? frames.subarray(start) : frames;
  }

  // Whether a frame is of C, in accelrt or in the interpreter.
  isInner(index) {
    const { file, line } = this.frame(index);
    return !line && (file === "accelrt" || /\/accelrt\/.*\.so$|(^|\/)(lib)?python[^/]*$/.test(file));
  }

  // A stack in a few words: the innermost of those frames.
  brief(stack) {
    const frames = this.callersOf(stack);
    return this.briefFrame(frames.length ? frames[0] : -1);
  }

  briefFrame(frame) {
    if (frame < 0) return "no stack";
    const { name, file, line } = this.frame(frame);
    const short = file.slice(file.lastIndexOf("/") + 1);
    return short ? `${name}  ${short}${line ? ":" + line : ""}` : name;
  }

  // A stack's names and files in small letters, for searches.
  textOf(stack) {
    let text = this.searched[stack];
    if (text === undefined) {
      const parts = [];
      for (const frame of this.framesOf(stack)) {
        parts.push(this.strings[this.names[frame]], this.where(frame));
      }
      text = this.searched[stack] = parts.join("\n").toLowerCase();
    }
    return text;
  }
}

class Device {
  constructor(recording, header, columns) {
    this.recording = recording;
    Object.assign(this, header);
    this.events = columns(header.events);
    this.allocations = columns(header.allocations);
    this.ranges = columns(header.ranges);
    this.allocationCount = this.allocations.size.length;
    const first = (stack) => (recording.framesOf(stack).length ? recording.callersOf(stack)[0] : -1);
    const innermost = Int32Array.from(recording.stackEnds, (_, stack) => first(stack));
    this.allocations.frame = this.allocations.stack.map((stack) => innermost[stack]);
    this.rangeCount = this.ranges.size.length;
    this.findTotals();
    this.tree = new LiveTree(this);
  }

  // live[t + 1] and reservedAt(t) are what is live and reserved after event t; t is -1 before the first.
  findTotals() {
    const { size, begin, end } = this.allocations;
    const moved = new Float64Array(this.count + 1);
    this.closed = new Map(); // event -> allocations that ended at it though it is not of them
    for (let each = 0; each < this.allocationCount; each++) {
      moved[begin[each] + 1] += size[each];
      if (end[each] < this.count) {
        moved[end[each] + 1] -= size[each];
        if (this.events.allocation[end[each]] !== each) {
          this.closed.set(end[each], [...(this.closed.get(end[each]) || []), each]);
        }
      }
    }
    let sum = 0, peak = 0;
    for (let index = 0; index <= this.count; index++) {
      sum = moved[index] += sum;
      if (sum > moved[peak]) peak = index;
    }
    this.live = moved;
    this.peakEvent = peak - 1;
    this.reservedPeak = this.events.reserved.reduce((a, b) => Math.max(a, b), this.reserved_before);
    this.oomCount = 0;
    const oom = this.actions.indexOf("oom");
    for (const action of this.events.action) if (action === oom) this.oomCount++;
  }

  reservedAt(moment) {
    return moment < 0 ? this.reserved_before : this.events.reserved[moment];
  }

  timeAt(moment) {
    return moment < 0 ? 0 : this.events.times[moment];
  }

  isLive(each, moment) {
    return this.allocations.begin[each] <= moment && this.allocations.end[each] > moment;
  }

  stateAt(each, moment) {
    const { begin, freed, end } = this.allocations;
    if (begin[each] > moment) return "not yet allocated";
    if (end[each] <= moment) return "freed";
    return freed[each] <= moment ? "pending (freed, in use on a stream)" : "allocated";
  }

  liveAt(moment) {
    const { begin, end } = this.allocations, found = [];
    const until = lowerBound(begin, moment + 1);
    for (let each = 0; each < until; each++) if (end[each] > moment) found.push(each);
    return found;
  }

  rangesAt(moment) {
    const { begin, end } = this.ranges, found = [];
    for (let each = 0; each < this.rangeCount; each++) {
      if (begin[each] <= moment && end[each] > moment) found.push(each);
    }
    return found;
  }

  tagOf(each) {
    return this.recording.strings[this.allocations.tag[each]];
  }

  // What an allocation takes of its segment: its block where that is known, else what was requested.
  extent(each) {
    return this.allocations.block[each] || this.allocations.size[each];
  }
}

// The bytes of live allocations in order of their begin, as sums over pairs, pairs of pairs and so on.
class LiveTree {
  constructor(device) {
    this.device = device;
    this.width = 1;
    while (this.width < Math.max(1, device.allocationCount)) this.width *= 2;
    this.sums = new Float64Array(2 * this.width);
    this.moment = null;
  }

  moveTo(moment) {
    const far = this.moment === null || moment < this.moment || moment - this.moment > this.width / 4 + 64;
    if (far) this.build(moment);
    else while (this.moment < moment) this.step(++this.moment);
    this.moment = moment;
  }

  build(moment) {
    const { begin, end, size } = this.device.allocations, sums = this.sums, width = this.width;
    sums.fill(0, width);
    for (let each = 0; each < this.device.allocationCount && begin[each] <= moment; each++) {
      if (end[each] > moment) sums[width + each] = size[each];
    }
    for (let node = width - 1; node > 0; node--) sums[node] = sums[2 * node] + sums[2 * node + 1];
  }

  step(event) {
    const each = this.device.events.allocation[event];
    const { begin, end, size } = this.device.allocations;
    if (each >= 0) {
      if (begin[each] === event) this.set(each, size[each]);
      if (end[each] === event) this.set(each, 0);
    }
    for (const other of this.device.closed.get(event) || []) this.set(other, 0);
  }

  set(each, size) {
    let node = this.width + each;
    const more = size - this.sums[node];
    for (; node > 0; node >>= 1) this.sums[node] += more;
  }

  // The allocation that holds the byte at an offset from the bottom; its begin is left in this.from.  -1: none.
  find(offset) {
    const sums = this.sums;
    if (!(offset >= 0 && offset < sums[1])) return -1;
    let node = 1, from = 0;
    while (node < this.width) {
      node *= 2;
      if (offset - from >= sums[node]) from += sums[node++];
    }
    this.from = from;
    return node - this.width;
  }

  // Where an allocation begins, in bytes from the bottom.
  offsetOf(each) {
    let node = this.width + each, from = 0;
    for (; node > 1; node >>= 1) if (node & 1) from += this.sums[node - 1];
    return from;
  }
}
