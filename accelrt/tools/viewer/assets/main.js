// The page: what is shown, what is chosen, and which parts are drawn again.

const TABS = ["difference", "map", "flame", "table", "groups", "events"];

class App {
  constructor(recording) {
    this.recording = recording;
    this.theme = new Theme();
    this.wanted = new Set();
    this.device = recording.devices[0];
    this.moment = this.device.peakEvent;
    this.axis = "event";
    this.tab = "map";
    this.pinned = null;
    this.hovered = null;
    this.timeline = new Timeline($("timeline"), this);
    this.map = new MemoryMap(this);
    this.flame = new FlameGraph(this);
    this.table = new AllocationTable(this);
    this.events = new EventTable(this);
    this.groups = new GroupTables(this);
    this.difference = new DifferenceTables(this);
    this.tabs = TABS.filter((name) => name !== "difference" || recording.difference);
    $("tab-difference").hidden = !recording.difference;
    this.connect();
    this.setDevice(0);
    this.openTab(this.tabs[0]);
  }

  connect() {
    const { recording } = this;
    recording.devices.forEach((each, at) => $("device").append(make("option", { value: at, text: each.device < 0 ? "page-locked" : `${each.device}` })));
    $("device-choice").hidden = recording.devices.length < 2;
    $("device").addEventListener("change", () => this.setDevice(Number($("device").value)));
    $("colour").addEventListener("change", () => this.setColours($("colour").value));
    $("axis").addEventListener("change", () => {
      this.axis = $("axis").value;
      this.timeline.reset();
    });
    $("zoom-in").addEventListener("click", () => this.timeline.zoom(0.6));
    $("zoom-out").addEventListener("click", () => this.timeline.zoom(1 / 0.6));
    $("zoom-all").addEventListener("click", () => this.timeline.showAll());
    $("moment").addEventListener("input", () => this.setMoment(Number($("moment").value), true));
    $("back").addEventListener("click", () => this.setMoment(this.moment - 1, true));
    $("forward").addEventListener("click", () => this.setMoment(this.moment + 1, true));
    $("to-peak").addEventListener("click", () => this.setMoment(this.device.peakEvent, true));
    for (const name of TABS) $(`tab-${name}`).addEventListener("click", () => this.openTab(name));
    $("tabs").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      this.openTab(this.tabs[(this.tabs.indexOf(this.tab) + step + this.tabs.length) % this.tabs.length]);
      $(`tab-${this.tab}`).focus();
    });
    window.addEventListener("resize", () => this.draw("timeline", this.tab));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.theme = new Theme();
      this.draw("timeline", "legend", this.tab);
      this.showDetails();
    });
  }

  setDevice(at) {
    this.device = this.recording.devices[at];
    const { device } = this;
    $("moment").max = device.count - 1;
    $("moment").disabled = $("back").disabled = $("forward").disabled = $("to-peak").disabled = device.count === 0;
    this.pinned = this.hovered = null;
    const { stack, tag } = device.allocations;
    const mode = tag.some((each) => each) ? "tag" : stack.some((each) => each) ? "frame"
      : device.streams.length > 1 ? "stream" : "allocation";
    $("colour").value = mode;
    this.setColours(mode);
    this.timeline.reset();
    this.setMoment(device.peakEvent);
    this.showDetails();
  }

  setColours(mode) {
    this.colours = new Colours(this.device, mode);
    this.draw("timeline", "legend", this.tab);
  }

  setMoment(moment, reveal = false) {
    this.moment = Math.min(Math.max(moment, -1), this.device.count - 1);
    $("moment").value = this.moment;
    const text = this.moment < 0 ? "before the first event"
      : `event ${whole.format(this.moment)}, ${seconds(this.device.timeAt(this.moment))}`;
    $("moment-text").textContent = text;
    $("moment").setAttribute("aria-valuetext", text);
    if (reveal) this.timeline.reveal(this.moment);
    this.draw("timeline", "figures", "legend", this.tab === "events" ? "figures" : this.tab, "details");
  }

  openTab(name) {
    this.tab = name;
    for (const each of TABS) {
      $(`tab-${each}`).setAttribute("aria-selected", String(each === name));
      $(`tab-${each}`).tabIndex = each === name ? 0 : -1;
      $(`view-${each}`).hidden = each !== name;
    }
    this.draw(name);
  }

  // Draws parts before the next picture, each once.
  draw(...parts) {
    if (!this.wanted.size) requestAnimationFrame(() => this.drawNow());
    for (const part of parts) this.wanted.add(part);
  }

  drawNow() {
    const wanted = this.wanted;
    this.wanted = new Set();
    if (wanted.has("timeline")) this.timeline.draw();
    if (wanted.has("figures")) this.showFigures();
    if (wanted.has("legend")) this.showLegend();
    if (wanted.has("details")) this.showDetails();
    for (const name of TABS) if (wanted.has(name) && this.tab === name) this[name].draw();
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  }

  showFigures() {
    const { device, moment } = this, live = device.live[moment + 1], reserved = device.reservedAt(moment);
    const part = reserved > 0 ? `${((100 * Math.max(0, reserved - live)) / reserved).toFixed(0)} %` : "";
    const figures = [
      ["Peak live", bytes(device.live[device.peakEvent + 1])],
      ["Peak reserved", bytes(device.reservedPeak)],
      ["Live then", bytes(live)],
      ["Reserved then", bytes(reserved)],
      ["Of it unused", bytes(Math.max(0, reserved - live)), part],
      ["Events", whole.format(device.count), device.dropped ? `${whole.format(device.dropped)} lost` : ""],
    ];
    if (device.oomCount) figures.push(["Out of memory", `${whole.format(device.oomCount)}×`, "", "warn"]);
    $("figures").replaceChildren(...figures.map(([name, text, more, kind]) =>
      make("div", { className: kind || "" }, make("dt", { text: name }),
        make("dd", { text, title: `${text} ${more || ""}` }, ...(more ? [" ", make("small", { text: more })] : [])))));
  }

  showLegend() {
    const { device, colours, moment, theme } = this, { keys } = colours;
    if (!keys) {
      $("legend").replaceChildren();
      return;
    }
    const sums = new Map();
    for (const each of device.liveAt(moment)) {
      sums.set(keys[each], (sums.get(keys[each]) || 0) + device.allocations.size[each]);
    }
    const largest = [...sums].sort(([, a], [, b]) => b - a);
    const shown = largest.slice(0, 6).map(([key, size]) => make("li", {},
      swatch(theme.css[LIVE][colours.byKey.get(key)]),
      make("span", { text: colours.label(key), title: colours.label(key) }), make("b", { text: bytes(size) })));
    const rest = largest.slice(6);
    if (rest.length) {
      const size = rest.reduce((sum, [, each]) => sum + each, 0);
      shown.push(make("li", { text: `and ${whole.format(rest.length)} more, ${bytes(size)}` }));
    }
    $("legend").replaceChildren(...shown);
  }

  // found: { allocation }, { hole, segment }, { node, root } or { event }, and maybe { moment }; null is nothing.
  hover(found, event) {
    const before = this.hovered;
    this.hovered = found;
    if (event && found) this.showTip(found, event);
    else $("tip").hidden = true;
    const same = before && found && before.allocation === found.allocation && before.node === found.node &&
      before.hole?.address === found.hole?.address;
    if (same || (!before && !found)) return;
    if (!this.pinned) this.draw("details");
    if (this.tab === "map") this.draw("map");
  }

  pin(found) {
    this.pinned = found;
    this.draw("timeline", "details", this.tab === "flame" ? "details" : this.tab);
  }

  // What describes a thing: its colour, its title, pairs of names and texts, and its stack.
  describe(found) {
    const { device, recording, moment, theme, colours } = this;
    if (found.allocation !== undefined) {
      const each = found.allocation, { size, block, begin, freed, end, stream, pool, stack, address } = device.allocations;
      const at = (event) => (event < 0 ? "before the first event"
        : event >= device.count ? "never" : `event ${whole.format(event)}, ${seconds(device.timeAt(event))}`);
      return {
        colour: theme.css[LIVE][colours.of[each]],
        title: bytes(size[each]),
        pairs: [
          ["Requested", `${whole.format(size[each])} B`],
          ...(block[each] ? [["Block", exact(block[each])]] : []),
          ["Tag", device.tagOf(each) || "none"],
          ["Stream", device.streams[stream[each]]],
          ["Pool", poolName(device, pool[each])],
          ["State", device.stateAt(each, moment)],
          ...(found.segment?.unknown ? [["Memory", "not mapped at the moment, as far as is known"]] : []),
          ["Address", hex(address, each)],
          ["Allocated", at(begin[each])],
          ["Freed", at(freed[each])],
          ...(end[each] - freed[each] > 1 ? [["Free again", at(end[each])]] : []),
        ],
        stack: stack[each],
        begin: begin[each],
        end: end[each],
      };
    }
    if (found.hole) {
      const { segment, hole } = found, kinds = ["plain", "expandable", "stitched"];
      return {
        colour: theme.free,
        title: `${bytes(hole.size)} free`,
        pairs: [
          ["Address", "0x" + hole.address.toString(16)],
          ["Segment", `${kinds[segment.kind]}, ${exact(segment.size)}`],
          ["Blocks", whole.format(segment.blocks.length)],
          ["Stream", device.streams[segment.stream]],
          ["Pool", poolName(device, segment.pool)],
        ],
        stack: segment.ranges.length ? device.ranges.stack[segment.ranges[0]] : 0,
        stackTitle: "Taken from the device by",
      };
    }
    if (found.node) {
      const { node, root } = found;
      return {
        title: node.label,
        pairs: [
          ["Live", exact(node.size)],
          ["Part", `${((100 * node.size) / (root.size || 1)).toFixed(1)} %`],
          ["Allocations", whole.format(node.count)],
          ...(typeof node.where === "number" ? [["Where", recording.where(node.where)]] : []),
        ],
        stack: 0,
      };
    }
    if (found.event !== undefined) {
      const { events } = device, event = found.event, name = device.actions[events.action[event]];
      return {
        title: name,
        pairs: [
          ["Event", `${whole.format(event)}, ${seconds(events.times[event])}`],
          ["Size", exact(events.size[event])],
          name === "oom" ? ["Free then", exact(place(events.address, event))] : ["Address", hex(events.address, event)],
          ["Stream", device.streams[events.stream[event]]],
          ["Pool", poolName(device, events.pool[event])],
          ["Tag or text", recording.strings[events.tag[event]] || "none"],
        ],
        stack: events.stack[event],
      };
    }
    if (found.annotations) {
      return {
        title: recording.strings[found.annotations.at(-1)[2]],
        pairs: found.annotations.map(([begin, end, name]) => [recording.strings[name], seconds(end - begin)]),
        stack: 0,
      };
    }
    return null;
  }

  frames(stack, most = Infinity, fromCaller = false) {
    const { recording } = this;
    const found = fromCaller ? recording.callersOf(stack) : recording.framesOf(stack);
    return [...found.subarray(0, most)].map((frame) => [recording.frame(frame).name, recording.where(frame)]);
  }

  showTip(found, event) {
    const said = this.describe(found), tip = $("tip");
    tip.hidden = !said;
    if (!said) return;
    const few = said.pairs.filter(([name]) => !["Address", "Block", "Allocated", "Freed", "Free again"].includes(name));
    const shown = this.frames(said.stack, 6, true);
    const more = this.recording.callersOf(said.stack).length - shown.length;
    tip.replaceChildren(
      make("b", { text: said.title }),
      ...few.map(([name, text]) => make("div", { text: `${name}: ${text}` })),
      ...shown.map(([name, where]) => make("div", { className: "frame", text: where ? `${name}  ${where}` : name })),
      ...(more > 0 ? [make("div", { text: `and ${more} more frames` })] : []),
    );
    const { offsetWidth, offsetHeight } = tip;
    const left = Math.min(event.clientX + 14, window.innerWidth - offsetWidth - 8);
    const below = event.clientY + 16;
    const top = below + offsetHeight > window.innerHeight - 8 ? event.clientY - offsetHeight - 12 : below;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  }

  showDetails() {
    const found = this.pinned || this.hovered, said = found && this.describe(found);
    const buttons = [];
    const button = (text, act) => {
      const made = make("button", { type: "button", text });
      made.addEventListener("click", act);
      buttons.push(made);
    };
    if (this.pinned) button("Unpin", () => this.pin(null));
    if (said && this.pinned && said.begin !== undefined) {
      if (said.begin >= 0) button("Begin", () => this.setMoment(said.begin, true));
      if (said.end < this.device.count) button("End", () => this.setMoment(said.end, true));
    }
    const held = document.activeElement?.closest("#details-buttons") ? document.activeElement.textContent : null;
    $("details-buttons").replaceChildren(...buttons);
    if (held) (buttons.find((each) => each.textContent === held) || $("timeline")).focus();
    if (!said) {
      const text = "Point at an allocation, a block or a frame to see it here; click pins it.";
      $("details").replaceChildren(make("p", { className: "note", text }));
      return;
    }
    const parts = [make("p", { className: "title" }, ...(said.colour ? [swatch(said.colour)] : []), said.title)];
    const list = make("dl");
    for (const [name, text] of said.pairs) list.append(make("dt", { text: name }), make("dd", { text }));
    parts.push(list);
    const stack = this.frames(said.stack);
    if (stack.length) {
      parts.push(make("h3", { text: said.stackTitle || "Stack, innermost first" }));
      parts.push(make("ol", {}, ...stack.map(([name, where]) =>
        make("li", {}, make("b", { text: name }), make("span", { text: where })))));
    } else if (found.allocation !== undefined) {
      parts.push(make("h3", { text: "No stack was recorded" }));
    }
    $("details").replaceChildren(...parts);
  }
}

function fail(error) {
  $("problem").hidden = false;
  $("problem").textContent = `The snapshot cannot be shown: ${error.message || error}`;
}

unpack().then((recording) => {
  const app = new App(recording);
  Object.defineProperty(window, "accelrtViewer", { value: app }); // for a console
}).catch(fail);
