// Tables: the allocations and the events, of which only the rows in view exist, and the figures of groups.

const ROW = 27;

// columns: { name, wide, right, text(index), value(index) to sort by }.  A phone shows those that have narrow alone,
// which is their width there.
class VirtualTable {
  constructor(element, columns, choose, label) {
    this.element = element;
    this.all = this.columns = columns;
    this.choose = choose;
    this.order = { column: 0, falling: true };
    this.found = new Int32Array(0);
    this.cursor = 0;
    this.phone = window.matchMedia("(max-width: 560px)");
    this.head = make("div", { className: "head", role: "row" });
    this.rows = make("div", { className: "rows", role: "rowgroup", tabIndex: 0 });
    this.rows.setAttribute("aria-label", `${label}: arrows move, Enter chooses`);
    this.empty = make("div", { className: "empty", text: "Nothing matches.", hidden: true });
    element.setAttribute("role", "grid");
    element.setAttribute("aria-label", label);
    element.replaceChildren(this.head, this.rows, this.empty);
    this.layOut();
    this.phone.addEventListener("change", () => {
      this.layOut();
      this.sort();
      this.draw();
    });
    element.addEventListener("scroll", () => this.draw());
    this.rows.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(Number(row.dataset.at));
    });
    this.rows.addEventListener("keydown", (event) => this.onKey(event));
  }

  layOut() {
    const sorted = this.columns[this.order.column], phone = this.phone.matches;
    this.columns = phone ? this.all.filter((column) => column.narrow) : this.all;
    this.order.column = Math.max(0, this.columns.indexOf(sorted));
    this.template = this.columns.map((column) => (phone ? column.narrow : column.wide)).join(" ");
    this.head.style.gridTemplateColumns = this.template;
    this.head.replaceChildren(...this.columns.map((column, at) => {
      const button = make("button", { type: "button", text: column.name });
      button.addEventListener("click", () => this.sortBy(at));
      return make("div", { role: "columnheader", className: column.right ? "right" : "" }, button);
    }));
  }

  sortBy(at) {
    const same = this.order.column === at;
    this.order = { column: at, falling: same ? !this.order.falling : this.columns[at].right === true };
    this.sort();
    this.draw();
  }

  show(found) {
    this.found = Int32Array.from(found);
    this.cursor = Math.min(this.cursor, Math.max(0, this.found.length - 1));
    this.sort();
    this.draw();
  }

  sort() {
    const { column, falling } = this.order, { value } = this.columns[column];
    const values = new Map();
    for (const index of this.found) values.set(index, value(index));
    const way = falling ? -1 : 1;
    this.found.sort((one, other) => {
      const a = values.get(one), b = values.get(other);
      return a < b ? -way : a > b ? way : one - other;
    });
    [...this.head.children].forEach((cell, at) => {
      const state = at === column ? (falling ? "descending" : "ascending") : "none";
      cell.setAttribute("aria-sort", state);
      const mark = at === column ? (falling ? " ↓" : " ↑") : "";
      cell.firstChild.textContent = this.columns[at].name + mark;
    });
    this.element.setAttribute("aria-rowcount", String(this.found.length + 1));
  }

  draw() {
    const high = this.element.clientHeight || 400;
    this.rows.style.height = `${this.found.length * ROW}px`;
    this.empty.hidden = this.found.length > 0;
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - 4);
    const last = Math.min(this.found.length, first + Math.ceil(Math.max(high, 300) / ROW) + 10);
    const drawn = [];
    for (let at = first; at < last; at++) {
      const index = this.found[at];
      const row = make("div", { className: "row", role: "row", "aria-rowindex": at + 2 });
      row.dataset.at = at;
      row.style.top = `${at * ROW}px`;
      row.style.gridTemplateColumns = this.template;
      if (index === this.selected) row.setAttribute("aria-selected", "true");
      for (const column of this.columns) {
        const cell = make("div", { role: "gridcell", className: column.right ? "right" : "" });
        if (column.swatch) cell.append(swatch(column.swatch(index)), " ");
        cell.append(column.text(index));
        row.append(cell);
      }
      drawn.push(row);
    }
    this.rows.replaceChildren(...drawn);
  }

  select(at) {
    this.cursor = at;
    this.selected = this.found[at];
    this.choose(this.selected);
    const top = at * ROW, high = this.element.clientHeight - ROW;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + 2 * ROW > this.element.scrollTop + high) this.element.scrollTop = top + 2 * ROW - high;
    this.draw();
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9, Enter: 0 }[event.key];
    if (step === undefined || !this.found.length) return;
    event.preventDefault();
    this.select(Math.min(Math.max(this.cursor + step, 0), this.found.length - 1));
  }
}

function swatch(colour) {
  const made = make("span", { className: "swatch", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}

class AllocationTable {
  constructor(app) {
    this.app = app;
    const all = () => app.device.allocations;
    const { recording } = app;
    const lifetime = (each) =>
      all().end[each] >= app.device.count ? Infinity
        : app.device.timeAt(all().end[each]) - app.device.timeAt(all().begin[each]);
    this.table = new VirtualTable($("table"), [
      {
        name: "Size", wide: "112px", narrow: "96px", right: true, value: (each) => all().size[each],
        text: (each) => bytes(all().size[each]),
        swatch: (each) => app.theme.css[LIVE][app.colours.of[each]],
      },
      {
        name: "Address", wide: "136px", value: (each) => place(all().address, each),
        text: (each) => hex(all().address, each),
      },
      {
        name: "Allocated", wide: "96px", right: true, value: (each) => all().begin[each],
        text: (each) => (all().begin[each] < 0 ? "before" : `#${whole.format(all().begin[each])}`),
      },
      {
        name: "Lived", wide: "92px", right: true, value: lifetime,
        text: (each) => (lifetime(each) === Infinity ? "to the end" : seconds(lifetime(each))),
      },
      {
        name: "Stream", wide: "92px", value: (each) => all().stream[each],
        text: (each) => app.device.streams[all().stream[each]],
      },
      {
        name: "Tag", wide: "minmax(70px, 1fr)", narrow: "minmax(0, 2fr)", value: (each) => app.device.tagOf(each),
        text: (each) => app.device.tagOf(each) || "-",
      },
      {
        name: "Stack", wide: "minmax(200px, 3fr)", narrow: "minmax(0, 3fr)", value: (each) => recording.brief(all().stack[each]),
        text: (each) => recording.brief(all().stack[each]),
      },
    ], (each) => app.pin({ allocation: each }), "Allocations");
    let later;
    $("search").addEventListener("input", () => {
      clearTimeout(later);
      later = setTimeout(() => this.draw(), 80);
    });
    $("only-live").addEventListener("input", () => this.draw());
  }

  matches(words) {
    const { device, recording } = this.app, { allocations } = device;
    const known = new Map();
    return (each) => words.every((word) => {
      const key = `${word} ${allocations.stack[each]} ${allocations.tag[each]} ${allocations.stream[each]} ` +
        allocations.pool[each];
      let found = known.get(key);
      if (found === undefined) {
        const named = [
          recording.textOf(allocations.stack[each]), device.tagOf(each).toLowerCase(),
          `stream ${device.streams[allocations.stream[each]]}`, poolName(device, allocations.pool[each]),
        ].join("\n");
        known.set(key, (found = named.includes(word)));
      }
      return found || (word.startsWith("0x") && hex(allocations.address, each).startsWith(word));
    });
  }

  draw() {
    const { device, moment } = this.app;
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = $("only-live").checked ? device.liveAt(moment) : [...Array(device.allocationCount).keys()];
    if (words.length) found = found.filter(this.matches(words));
    const { pinned } = this.app;
    this.table.selected = pinned && pinned.allocation;
    this.table.show(found);
    let sum = 0;
    for (const each of found) sum += device.allocations.size[each];
    $("table-text").textContent = `${whole.format(found.length)} allocations, ${bytes(sum)}`;
  }
}

class EventTable {
  constructor(app) {
    this.app = app;
    const all = () => app.device.events, { recording } = app;
    const name = (event) => app.device.actions[all().action[event]];
    const text = (event) => recording.strings[all().tag[event]];
    this.name = name;
    this.table = new VirtualTable($("events"), [
      {
        name: "Event", wide: "88px", narrow: "72px", right: true, value: (event) => event,
        text: (event) => `#${whole.format(event)}`,
      },
      {
        name: "Time", wide: "96px", right: true, value: (event) => all().times[event],
        text: (event) => seconds(all().times[event]),
      },
      { name: "Action", wide: "132px", narrow: "minmax(0, 2fr)", value: name, text: name },
      {
        name: "Size", wide: "92px", right: true, value: (event) => all().size[event],
        text: (event) => (name(event).startsWith("annotation") ? "" : bytes(all().size[event])),
      },
      {
        name: "Address", wide: "150px", value: (event) => place(all().address, event),
        text: (event) => (name(event) === "oom" ? `${bytes(place(all().address, event))} free` : hex(all().address, event)),
      },
      {
        name: "Stream", wide: "92px", value: (event) => all().stream[event],
        text: (event) => app.device.streams[all().stream[event]],
      },
      {
        name: "Tag or text", wide: "minmax(80px, 1fr)", narrow: "minmax(0, 2fr)", value: text,
        text: (event) => text(event) || "-",
      },
      {
        name: "Stack", wide: "minmax(180px, 2fr)", narrow: "minmax(0, 3fr)", value: (event) => recording.brief(all().stack[event]),
        text: (event) => recording.brief(all().stack[event]),
      },
    ], (event) => {
      app.setMoment(event, true);
      app.pin({ event });
    }, "Events");
    this.table.order = { column: 0, falling: false };
    let later;
    $("event-search").addEventListener("input", () => {
      clearTimeout(later);
      later = setTimeout(() => this.draw(), 80);
    });
    $("all-events").addEventListener("input", () => this.draw());
  }

  draw() {
    const { device } = this.app, { recording } = device, { events } = device;
    const words = $("event-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const everything = $("all-events").checked, found = [];
    for (let event = 0; event < device.count; event++) {
      if (!everything && events.action[event] < 5) continue;
      if (words.length) {
        const text = `${this.name(event)}\n${recording.strings[events.tag[event]].toLowerCase()}\n` +
          recording.textOf(events.stack[event]);
        if (!words.every((word) => text.includes(word))) continue;
      }
      found.push(event);
    }
    this.table.show(found);
    $("events-text").textContent = `${whole.format(found.length)} events` +
      (device.dropped ? `; ${whole.format(device.dropped)} older ones were dropped` : "");
  }
}

// Live bytes, their peak over the recording, and what is reserved, by pool, stream and tag.
class GroupTables {
  constructor(app) {
    this.app = app;
    this.peaks = new Map();
  }

  peaksOf(by) {
    const { device } = this.app, key = `${device.device} ${by}`;
    if (this.peaks.has(key)) return this.peaks.get(key);
    const { begin, end, size } = device.allocations, column = device.allocations[by];
    const now = new Map(), peaks = new Map();
    const add = (each, more) => {
      const sum = (now.get(column[each]) || 0) + more;
      now.set(column[each], sum);
      if (sum > (peaks.get(column[each]) || 0)) peaks.set(column[each], sum);
    };
    for (let each = 0; each < device.allocationCount && begin[each] < 0; each++) add(each, size[each]);
    for (let event = 0; event < device.count; event++) {
      for (const other of device.closed.get(event) || []) add(other, -size[other]);
      const each = device.events.allocation[event];
      if (each < 0) continue;
      if (begin[each] === event) add(each, size[each]);
      if (end[each] === event) add(each, -size[each]);
    }
    this.peaks.set(key, peaks);
    return peaks;
  }

  draw() {
    const { device, moment } = this.app;
    const segments = this.app.map.segmentsAt(moment);
    const sections = [["pool", "Pools"], ["stream", "Streams"], ["tag", "Tags"]];
    $("groups").replaceChildren(...sections.flatMap(([by, title]) => this.section(by, title, device, segments, moment)));
  }

  section(by, title, device, segments, moment) {
    const { theme } = this.app, colours = new Colours(device, by);
    const peaks = this.peaksOf(by), rows = new Map();
    const row = (key) => {
      if (!rows.has(key)) {
        rows.set(key, { live: 0, count: 0, pending: 0, reserved: 0, segments: 0, largest: 0, used: 0 });
      }
      return rows.get(key);
    };
    for (const key of peaks.keys()) row(key);
    const { size, freed } = device.allocations;
    for (const each of device.liveAt(moment)) {
      const found = row(device.allocations[by][each]);
      found.live += size[each];
      found.count++;
      if (freed[each] <= moment) found.pending += size[each];
    }
    if (by !== "tag") {
      for (const segment of segments) {
        const found = row(segment[by]);
        found.reserved += segment.size;
        found.segments++;
        let at = segment.address;
        for (const block of segment.blocks) {
          found.used += block.size;
          found.largest = Math.max(found.largest, block.address - at);
          at = block.address + block.size;
        }
        found.largest = Math.max(found.largest, segment.address + segment.size - at);
      }
    }
    const reserved = by === "tag" ? [] : ["Segments", "Reserved", "Free", "Largest free"];
    const head = [title.slice(0, -1), "Live", "Allocations", "Pending", "Peak live", ...reserved];
    const body = [...rows].sort(([, a], [, b]) => b.live - a.live || b.reserved - a.reserved).map(([key, found]) => {
      const name = make("td", {}, swatch(theme.css[LIVE][colours.byKey.get(key) ?? NONE]), ` ${colours.label(key)}`);
      const figures = [
        bytes(found.live), whole.format(found.count), bytes(found.pending), bytes(peaks.get(key) || 0),
        ...(by === "tag" ? [] : [
          whole.format(found.segments), bytes(found.reserved), bytes(Math.max(0, found.reserved - found.used)),
          bytes(Math.max(0, found.largest)),
        ]),
      ];
      return make("tr", {}, name, ...figures.map((text) => make("td", { text })));
    });
    return titledTable(title, head, body);
  }
}

function titledTable(title, head, body) {
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { text, scope: "col" })))),
    make("tbody", {}, ...body));
  return [make("h3", { text: title }), make("div", {}, table)];
}

// What is live in the snapshot and was not in an earlier one: the same whatever the moment is.
class DifferenceTables {
  constructor(app) {
    this.app = app;
  }

  draw() {
    const { device } = this.app;
    const found = this.app.recording.difference.find((each) => each.device === device.device);
    if (!found) {
      $("difference").replaceChildren(make("p", { className: "empty", text: "Neither snapshot has memory of this device." }));
      return;
    }
    const signed = (size) => (size < 0 ? "" : "+") + bytes(size);
    const count = (each) => (each < 0 ? "" : "+") + whole.format(each);
    const row = (texts, title) => make("tr", { title: title || "" }, ...texts.map((text) => make("td", { text })));
    const totals = found.totals.map(([name, before, after, inBytes]) => row(
      inBytes ? [name, bytes(before), bytes(after), signed(after - before)]
        : [name, whole.format(before), whole.format(after), count(after - before)]));
    const changes = (title, rows) => (rows.length
      ? titledTable(title, [title.slice(3), "Bytes", "Blocks"],
        rows.map(([text, all, size, blocks]) => row([text, signed(size), count(blocks)], all)))
      : []);
    const blocksText = (each) => `${whole.format(each)} ${each === 1 ? "block" : "blocks"}`;
    const blocks = found.blocks.map(([size, address, stream, tag, stack, frames]) =>
      row([stack, tag, bytes(size), stream, address], frames));
    const [came, cameBytes] = found.came, [went, wentBytes] = found.went;
    $("difference").replaceChildren(
      ...titledTable("Compared with the earlier snapshot", ["", "Before", "After", "Change"], totals),
      make("p", {
        className: "note",
        text: `${blocksText(came)} of ${bytes(cameBytes)} came, ${blocksText(went)} of ${bytes(wentBytes)} went.`,
      }),
      ...changes("By tag", found.tags), ...changes("By stack", found.stacks), ...changes("By stream", found.streams),
      ...(blocks.length ? titledTable("Largest that came", ["Stack", "Tag", "Size", "Stream", "Address"], blocks) : []),
    );
  }
}
