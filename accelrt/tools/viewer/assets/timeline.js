// The timeline: live allocations over time, one on top of the other in order of allocation.
//
// A column of pixels shows the moment of its part of the axis at which most was live.  Each pixel of it finds its
// allocation in the tree of sums, so that drawing costs the same at any zoom and for any number of events.

const MARGIN = { left: 74, right: 10, top: 8, bottom: 22 };
const LANE = 15; // pixels of height of the lane of annotations
const LEAST_LABEL = 46;

class Timeline {
  constructor(canvas, app) {
    this.canvas = canvas;
    this.app = app;
    this.context = canvas.getContext("2d");
    this.pointers = new Map();
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => app.hover(null));
    canvas.addEventListener("dblclick", () => this.showAll());
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  reset() {
    this.byTime = this.app.axis === "time";
    const { count, events } = this.app.device;
    this.first = this.byTime ? 0 : -1;
    this.last = Math.max(this.byTime ? (count ? events.times[count - 1] : 0) : count, this.first + 1);
    this.showAll();
  }

  showAll() {
    [this.from, this.to] = [this.first, this.last];
    this.app.draw("timeline");
  }

  // The last event at or before a place on the axis.
  eventAt(place) {
    const { count, events } = this.app.device;
    const event = this.byTime ? lowerBound(events.times, place + 1e-9) - 1 : Math.floor(place);
    return Math.min(Math.max(event, -1), count - 1);
  }

  placeOf(event) {
    return this.byTime ? this.app.device.timeAt(event) : event;
  }

  xOf(place) {
    return MARGIN.left + ((place - this.from) / (this.to - this.from)) * this.width;
  }

  placeAt(x) {
    return this.from + ((x - MARGIN.left) / this.width) * (this.to - this.from);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    const least = this.byTime ? 1 : 4;
    const span = Math.min(Math.max((this.to - this.from) * factor, least), this.last - this.first);
    const part = (around - this.from) / (this.to - this.from);
    this.move(around - part * span, span);
  }

  move(from, span = this.to - this.from) {
    this.from = Math.min(Math.max(from, this.first), this.last - span);
    this.to = this.from + span;
    this.app.draw("timeline");
  }

  // Brings a moment into view.
  reveal(event) {
    const place = this.placeOf(event), span = this.to - this.from;
    if (place < this.from || place > this.to) this.move(place - span / 2);
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth) return;
    const { context, canvas, app } = this, { device, theme } = app;
    canvas.width = Math.round(clientWidth * ratio);
    canvas.height = Math.round(clientHeight * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.lane = device.annotations.length ? LANE : 0;
    this.width = Math.max(1, clientWidth - MARGIN.left - MARGIN.right);
    this.top = MARGIN.top + this.lane;
    this.height = Math.max(1, clientHeight - this.top - MARGIN.bottom);
    const chosen = app.pinned && app.pinned.allocation !== undefined ? app.pinned.allocation : -1;
    const shown = [device, this.byTime, this.from, this.to, this.width, this.height, ratio, theme, app.colours, chosen];
    if (!this.shown || shown.some((value, at) => value !== this.shown[at])) {
      this.shown = shown;
      this.findColumns();
      this.paint(ratio, chosen);
    }
    context.putImageData(this.image, Math.round(MARGIN.left * ratio), Math.round(this.top * ratio));
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    this.drawAxes(theme);
    this.drawReserved(theme);
    this.drawAnnotations(theme);
    this.drawMarks(theme);
    this.drawMoment(theme);
  }

  // For each column the moment that it shows, and the most that was reserved in it.
  findColumns() {
    const { device } = this.app, { live } = device, reserved = device.events.reserved;
    this.moments = new Int32Array(this.width);
    this.reserved = new Float64Array(this.width);
    const step = (this.to - this.from) / this.width;
    let event = this.eventAt(this.from);
    let most = 0;
    for (let column = 0; column < this.width; column++) {
      const until = this.eventAt(this.from + (column + 1) * step);
      let moment = Math.min(event + 1, until), held = device.reservedAt(moment);
      for (event = moment; event < until; ) {
        event++;
        if (live[event + 1] > live[moment + 1]) moment = event;
        if (reserved[event] > held) held = reserved[event];
      }
      this.moments[column] = moment;
      this.reserved[column] = held;
      most = Math.max(most, live[moment + 1], held);
    }
    this.most = Math.max(most * 1.08, 1);
  }

  yOf(count) {
    return this.top + this.height * (1 - count / this.most);
  }

  // Writes the columns' pixels into this.image; this.drawn is how many runs of pixels, one an allocation, they have.
  paint(ratio, chosen) {
    const { app, context, moments } = this, { device, theme, colours } = app, { tree } = device;
    const wide = Math.round(this.width * ratio), high = Math.round(this.height * ratio);
    const image = context.createImageData(wide, high);
    const pixels = new Uint32Array(image.data.buffer);
    const { begin, freed, end, size } = device.allocations;
    const [full, pending, edge] = theme.pixels;
    const perPixel = this.most / high;
    // The first column of a moment has a line where an allocation begins; those that repeat it do not.
    const fresh = new Uint32Array(high), repeated = new Uint32Array(high);
    let runs = 0, shown = null;
    for (let at = 0; at < this.width; at++) {
      const moment = moments[at], repeats = moment === shown;
      if (!repeats) {
        tree.moveTo(moment);
        fresh.fill(theme.background);
        repeated.fill(theme.background);
        const before = shown === null ? moment : shown, after = moments[Math.min(at + 4, this.width - 1)];
        for (let y = 0; y < high; ) {
          const each = tree.find((y + 0.5) * perPixel);
          if (each < 0) break;
          runs++;
          const next = Math.max(y + 1, Math.min(high, Math.round((tree.from + size[each]) / perPixel)));
          const hue = colours.of[each], isChosen = each === chosen;
          const colour = isChosen ? theme.selected : (freed[each] <= moment ? pending : full)[hue];
          const begins = next - y > 4 && begin[each] > before && end[each] > after && !isChosen;
          fresh.fill(begins ? edge[hue] : colour, high - next, high - y);
          repeated.fill(colour, high - next, high - y);
          if (next - y > 3 && !isChosen) fresh[high - next] = repeated[high - next] = edge[hue];
          y = next;
        }
        shown = moment;
      }
      const left = Math.round(at * ratio), column = repeats ? repeated : fresh;
      const right = Math.round((at + 1) * ratio);
      for (let y = 0, start = left; y < high; y++, start += wide) {
        if (right - left === 1) pixels[start] = column[y];
        else pixels.fill(column[y], start, start + right - left);
      }
    }
    this.image = image;
    this.drawn = runs;
  }

  drawAxes(theme) {
    const { context } = this;
    context.fillStyle = theme.faint;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const unit = 2 ** Math.floor(Math.log2(this.most / 4));
    for (let count = 0; count <= this.most; count += unit) {
      const y = Math.round(this.yOf(count)) + 0.5;
      context.globalAlpha = 0.55;
      context.beginPath();
      context.moveTo(MARGIN.left, y);
      context.lineTo(MARGIN.left + this.width, y);
      context.stroke();
      context.globalAlpha = 1;
      context.fillText(bytes(count), MARGIN.left - 8, y);
    }
    context.textBaseline = "top";
    context.textAlign = "center";
    const span = this.to - this.from;
    const rough = span / Math.max(2, this.width / 130), power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, power * [1, 2, 5, 10].find((factor) => power * factor >= rough));
    for (let place = Math.ceil(this.from / step) * step; place <= this.to; place += step) {
      const x = this.xOf(place);
      if (x < MARGIN.left + 14 || x > MARGIN.left + this.width - 20) continue;
      context.fillText(this.byTime ? seconds(place) : whole.format(place), x, this.top + this.height + 6);
    }
  }

  drawReserved(theme) {
    const { context } = this;
    context.strokeStyle = theme.reserved;
    context.lineWidth = 1.5;
    context.beginPath();
    for (let column = 0; column < this.width; column++) {
      const y = this.yOf(this.reserved[column]);
      if (!column) context.moveTo(MARGIN.left, y);
      context.lineTo(MARGIN.left + column, y);
      context.lineTo(MARGIN.left + column + 1, y);
    }
    context.stroke();
    let most = this.width - 1; // the text stands where the line is highest, as far right as that is
    for (let column = most; column >= 0; column--) if (this.reserved[column] > this.reserved[most]) most = column;
    context.fillStyle = theme.faint;
    context.textAlign = "right";
    context.textBaseline = "bottom";
    context.fillText("reserved", MARGIN.left + Math.max(most - 4, 56), this.yOf(this.reserved[most]) - 2);
  }

  drawAnnotations(theme) {
    const { context, app } = this, { device } = app;
    let row = 0, busy = -1;
    this.annotationsShown = 0;
    for (const [begin, end, name] of device.annotations) {
      const [first, last] = this.byTime ? [begin, end] : [begin, end].map((time) => lowerBound(device.events.times, time));
      const left = Math.max(this.xOf(first), MARGIN.left), right = Math.min(this.xOf(last), MARGIN.left + this.width);
      if (right < MARGIN.left || left > MARGIN.left + this.width || right - left < 0.5) continue;
      const text = device.recording.strings[name];
      context.fillStyle = theme.css[LIVE][(name * 5) % HUES.length];
      row = left < busy ? row + 1 : 0;
      busy = Math.max(busy, right);
      const top = MARGIN.top + Math.min(row, 2) * 4;
      context.globalAlpha = 0.5;
      context.fillRect(left, top, Math.max(1, right - left - 0.5), LANE - 3 - Math.min(row, 2) * 4);
      context.globalAlpha = 1;
      this.annotationsShown++;
      if (right - left > LEAST_LABEL && row === 0) {
        context.save();
        context.beginPath();
        context.rect(left, MARGIN.top, right - left - 2, LANE);
        context.clip();
        context.fillStyle = theme.text;
        context.textAlign = "left";
        context.textBaseline = "top";
        context.fillText(text, left + 4, MARGIN.top + 1);
        context.restore();
      }
    }
  }

  // A triangle where memory ran out.
  drawMarks(theme) {
    const { context, app } = this, { device } = app;
    const oom = device.actions.indexOf("oom");
    if (!device.oomCount) return;
    context.fillStyle = theme.warn;
    const { action } = device.events;
    let shown = -10;
    for (let event = Math.max(0, this.eventAt(this.from)); event <= this.eventAt(this.to); event++) {
      if (action[event] !== oom) continue;
      const x = this.xOf(this.placeOf(event));
      if (x - shown < 3) continue;
      shown = x;
      context.beginPath();
      context.moveTo(x - 5, this.top);
      context.lineTo(x + 5, this.top);
      context.lineTo(x, this.top + 9);
      context.fill();
      context.globalAlpha = 0.35;
      context.fillRect(x - 0.5, this.top, 1, this.height);
      context.globalAlpha = 1;
    }
  }

  drawMoment(theme) {
    const { context, app } = this;
    const x = this.xOf(this.placeOf(app.moment));
    if (x < MARGIN.left - 1 || x > MARGIN.left + this.width + 1) return;
    context.fillStyle = theme.accent;
    context.fillRect(x - 0.75, this.top - 4, 1.5, this.height + 8);
    context.beginPath();
    context.arc(x, this.top + this.height + 4, 4, 0, 7);
    context.fill();
  }

  // What is under the pointer: the moment of its column, and the allocation there if there is one.
  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (!this.moments || x < MARGIN.left || x >= MARGIN.left + this.width) return null;
    const column = Math.floor(x - MARGIN.left), moment = this.moments[column];
    if (y < this.top) {
      const time = this.byTime ? this.placeAt(x) : this.app.device.timeAt(moment);
      const over = this.app.device.annotations.filter(([begin, end]) => begin <= time && end >= time);
      return over.length ? { moment, annotations: over } : null;
    }
    const { tree } = this.app.device;
    tree.moveTo(moment);
    const allocation = tree.find((1 - (y - this.top) / this.height) * this.most);
    return allocation < 0 ? { moment } : { moment, allocation };
  }

  onWheel(event) {
    if (!event.ctrlKey && Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.move(this.from + (event.deltaX / this.width) * (this.to - this.from));
      return;
    }
    event.preventDefault();
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    this.zoom(1.0018 ** event.deltaY, Math.min(Math.max(this.placeAt(x), this.from), this.to));
  }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    this.dragged = this.pointers.size > 1;
    this.start = { x: event.clientX, from: this.from };
  }

  onMove(event) {
    if (!this.pointers.has(event.pointerId)) {
      this.app.hover(this.hit(event), event);
      return;
    }
    const before = [...this.pointers.values()];
    this.pointers.set(event.pointerId, event.clientX);
    const after = [...this.pointers.values()];
    const perPixel = (this.to - this.from) / this.width;
    if (after.length > 1) {
      const wide = Math.max(8, Math.abs(before[0] - before[1])), wider = Math.max(8, Math.abs(after[0] - after[1]));
      const middle = (after[0] + after[1]) / 2 - this.canvas.getBoundingClientRect().left;
      this.dragged = true;
      this.zoom(wide / wider, this.placeAt(middle));
    } else if (this.dragged || Math.abs(event.clientX - this.start.x) > 4) {
      this.dragged = true;
      this.app.hover(null);
      this.move(this.start.from - (event.clientX - this.start.x) * perPixel);
    }
  }

  onUp(event) {
    this.pointers.delete(event.pointerId);
    if (this.dragged) return;
    const found = this.hit(event);
    if (!found) return;
    this.app.setMoment(found.moment);
    this.app.pin(found.allocation === undefined ? null : { allocation: found.allocation });
  }

  onKey(event) {
    const span = this.to - this.from, { app } = this;
    const actions = {
      "+": () => this.zoom(0.6, this.placeOf(app.moment)),
      "=": () => this.zoom(0.6, this.placeOf(app.moment)),
      "-": () => this.zoom(1 / 0.6, this.placeOf(app.moment)),
      0: () => this.showAll(),
      ArrowLeft: () => this.move(this.from - span / 8),
      ArrowRight: () => this.move(this.from + span / 8),
      ",": () => app.setMoment(app.moment - 1, true),
      ".": () => app.setMoment(app.moment + 1, true),
      ArrowUp: () => this.choose(1),
      ArrowDown: () => this.choose(-1),
      Enter: () => app.pin(app.hovered),
      Escape: () => app.pin(null),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  // Moves on to the next allocation that is live at the moment, upwards or downwards.
  choose(way) {
    const { app } = this, live = app.device.liveAt(app.moment);
    if (!live.length) return;
    const now = app.hovered && app.hovered.allocation !== undefined ? live.indexOf(app.hovered.allocation) : -1;
    const next = now < 0 ? (way > 0 ? 0 : live.length - 1) : (now + way + live.length) % live.length;
    app.hover({ moment: app.moment, allocation: live[next] });
  }
}
