// The map: which addresses are mapped at the moment, and what lies in them.
//
// Each segment is a strip, as long as it is large; a strip that does not fit on its line goes on in the next.  Strips
// are in order of pool, stream and address.

const LINE = 17, LINE_GAP = 4, HEADING = 25;
const PAGE = 2 << 20;

class MemoryMap {
  constructor(app) {
    this.app = app;
    this.canvas = $("map");
    this.context = this.canvas.getContext("2d");
    this.scroll = $("map-scroll");
    this.scroll.addEventListener("scroll", () => app.draw("map"));
    $("map-scale").addEventListener("input", () => app.draw("map"));
    $("map-pages").addEventListener("input", () => app.draw("map"));
    this.canvas.addEventListener("pointermove", (event) => app.hover(this.hit(event), event));
    this.canvas.addEventListener("pointerleave", () => app.hover(null));
    this.canvas.addEventListener("click", (event) => app.pin(this.hit(event)));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  // The segments of the moment: ranges, those that touch and belong together as one, with what lies in them.
  segmentsAt(moment) {
    const { device } = this.app, { ranges, allocations } = device;
    const found = device.rangesAt(moment).map((range) => ({
      address: place(ranges.address, range),
      size: ranges.size[range],
      stream: ranges.stream[range],
      pool: ranges.pool[range],
      kind: ranges.kind[range],
      ranges: [range],
      blocks: [],
    }));
    found.sort((one, other) => one.address - other.address);
    const segments = [];
    for (const each of found) {
      const before = segments.at(-1);
      const touches = before && before.address + before.size === each.address && each.kind !== PLAIN;
      if (touches && before.kind === each.kind && before.stream === each.stream && before.pool === each.pool) {
        before.size += each.size;
        before.ranges.push(...each.ranges);
      } else segments.push(each);
    }
    const live = device.liveAt(moment).map((each) => ({ each, address: place(allocations.address, each) }));
    live.sort((one, other) => one.address - other.address);
    let at = 0;
    const outside = [];
    for (const block of live) {
      block.size = device.extent(block.each);
      while (at < segments.length && segments[at].address + segments[at].size <= block.address) at++;
      if (at < segments.length && segments[at].address <= block.address) segments[at].blocks.push(block);
      else outside.push(block);
    }
    for (const block of outside) {
      const before = segments.at(-1);
      if (before && before.unknown && before.address + before.size === block.address) {
        before.size += block.size;
        before.blocks.push(block);
        continue;
      }
      const { stream, pool } = allocations;
      segments.push({
        address: block.address, size: block.size, stream: stream[block.each], pool: pool[block.each],
        kind: PLAIN, ranges: [], blocks: [block], unknown: true,
      });
    }
    const named = (each) => [each.pool, each.stream, each.address];
    return segments.sort((one, other) => {
      const [a, b] = [named(one), named(other)];
      return a[0] - b[0] || a[1] - b[1] || a[2] - b[2];
    });
  }

  // Puts the strips on lines.
  arrange(width) {
    const { moment, device } = this.app;
    const scale = Number($("map-scale").value);
    const key = [device.device, moment, width, scale].join();
    if (this.key === key) return;
    this.key = key;
    this.segments = this.segmentsAt(moment);
    this.total = this.segments.reduce((sum, each) => sum + each.size, 0);
    this.perPixel = Math.max(1, this.total / (width * 20)) / 2 ** scale;
    this.lines = [];
    this.blocks = [];
    let y = 0, x = 0, group = null, line = null;
    const open = (height, heading) => {
      line = { y, height, heading, pieces: [] };
      this.lines.push(line);
      y += height;
      x = 0;
    };
    for (const segment of this.segments) {
      const name = `${segment.pool}.${segment.stream}`;
      if (group !== name) {
        group = name;
        open(HEADING, segment);
        line = null;
      }
      for (const block of segment.blocks) this.blocks.push({ ...block, segment });
      let done = 0;
      while (done < segment.size) {
        let left = Math.max(3, (segment.size - done) / this.perPixel);
        if (line === null || (x > 0 && x + Math.min(left, 40) > width)) open(LINE + LINE_GAP);
        const wide = Math.min(left, width - x);
        const part = wide === left ? segment.size - done : wide * this.perPixel;
        line.pieces.push({ segment, x, wide, from: done, size: part });
        x += wide + 3;
        done = wide === left ? segment.size : done + part;
        if (done < segment.size) open(LINE + LINE_GAP);
      }
    }
    this.height = y;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, { canvas, context, scroll, app } = this, { device, theme } = app;
    const width = Math.max(60, scroll.clientWidth - 2);
    this.arrange(width);
    const limit = Math.max(200, Math.round(window.innerHeight * 0.62));
    const height = Math.max(60, Math.min(this.height + 2, limit));
    $("map-room").style.height = `${this.height}px`;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    const top = scroll.scrollTop;
    this.drawn = 0;
    for (const line of this.lines) {
      if (line.y + line.height < top || line.y > top + height) continue;
      if (line.heading) this.drawHeading(line, line.y - top, theme, width);
      for (const piece of line.pieces) this.drawPiece(piece, line.y - top, theme);
    }
    const live = this.blocks.reduce((sum, each) => sum + each.size, 0);
    const free = this.total - live;
    $("map-text").textContent = this.segments.length
      ? `${whole.format(this.segments.length)} segments, ${bytes(this.total)}; ` +
        `${whole.format(this.blocks.length)} blocks live; ${bytes(Math.max(0, free))} free`
      : "nothing is mapped at this moment";
  }

  drawHeading(line, y, theme, width) {
    const { context, app } = this, { device } = app, { pool, stream } = line.heading;
    const own = this.segments.filter((each) => each.pool === pool && each.stream === stream);
    const size = own.reduce((sum, each) => sum + each.size, 0);
    const used = own.reduce((sum, each) => sum + each.blocks.reduce((all, block) => all + block.size, 0), 0);
    context.fillStyle = theme.css[LIVE][stream % HUES.length];
    context.fillRect(0, y + 9, 9, 9);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = theme.text;
    const name = `${poolName(device, pool)}, stream ${device.streams[stream]}`;
    context.fillText(name, 15, y + 14);
    const at = 15 + context.measureText(name).width + 10;
    context.fillStyle = theme.faint;
    if (at < width - 80) context.fillText(`${bytes(size)}, ${bytes(Math.max(0, size - used))} free`, at, y + 14);
  }

  drawPiece(piece, y, theme) {
    const { context, app } = this, { device, colours } = app, { segment } = piece;
    const first = segment.address + piece.from, last = first + piece.size;
    const scale = piece.wide / piece.size;
    context.fillStyle = theme.free;
    context.fillRect(piece.x, y, piece.wide, LINE);
    const { freed } = device.allocations;
    const chosen = app.pinned && app.pinned.allocation, near = app.hovered && app.hovered.allocation;
    let low = 0, high = segment.blocks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (segment.blocks[middle].address + segment.blocks[middle].size <= first) low = middle + 1;
      else high = middle;
    }
    let reached = -1;
    for (let at = low; at < segment.blocks.length && segment.blocks[at].address < last; at++) {
      const { each, address, size } = segment.blocks[at];
      const left = piece.x + (Math.max(address, first) - first) * scale;
      const right = piece.x + (Math.min(address + size, last) - first) * scale;
      if (right < reached + 0.4) continue; // under half a pixel, and one is there
      reached = right;
      const hue = colours.of[each];
      context.fillStyle = theme.css[freed[each] <= app.moment ? PENDING : LIVE][hue];
      const wide = Math.max(0.8, right - left - (right - left > 3 ? 0.75 : 0));
      if (segment.unknown) context.fillRect(left, y + LINE / 3, wide, LINE / 3); // live, and not mapped: asleep
      else context.fillRect(left, y, wide, LINE);
      this.drawn++;
      if (each === chosen || each === near) {
        context.strokeStyle = theme.text;
        context.lineWidth = 2;
        context.strokeRect(left + 1, y + 1, Math.max(1, wide - 2), LINE - 2);
      }
    }
    if ($("map-pages").checked && segment.kind !== PLAIN && PAGE * scale >= 5) {
      context.fillStyle = theme.text;
      context.globalAlpha = 0.4;
      for (let at = Math.ceil(first / PAGE) * PAGE; at < last; at += PAGE) {
        context.fillRect(piece.x + (at - first) * scale - 0.25, y + LINE - 4, 1, 4);
      }
      context.globalAlpha = 1;
    }
  }

  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top + this.scroll.scrollTop;
    const line = (this.lines || []).find((each) => y >= each.y && y < each.y + each.height);
    const piece = line && line.pieces.find((each) => x >= each.x && x < each.x + each.wide);
    if (!piece) return null;
    const { segment } = piece;
    const address = segment.address + piece.from + ((x - piece.x) / piece.wide) * piece.size;
    let before = segment.address;
    for (const block of segment.blocks) {
      if (block.address > address) return this.hole(segment, before, block.address);
      if (address < block.address + block.size) return { allocation: block.each, segment };
      before = block.address + block.size;
    }
    return this.hole(segment, before, segment.address + segment.size);
  }

  hole(segment, first, last) {
    return { segment, hole: { address: first, size: last - first } };
  }

  onKey(event) {
    const { app, blocks } = this;
    if (event.key === "Escape") app.pin(null);
    if (event.key === "Enter") app.pin(app.hovered);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (!step || !blocks.length) return;
    event.preventDefault();
    const now = app.hovered ? blocks.findIndex((block) => block.each === app.hovered.allocation) : -1;
    const next = now < 0 ? 0 : Math.min(Math.max(now + step, 0), blocks.length - 1);
    app.hover({ allocation: blocks[next].each, segment: blocks[next].segment });
    const offset = blocks[next].address - blocks[next].segment.address;
    const line = this.lines.find((each) =>
      each.pieces.some((piece) => piece.segment === blocks[next].segment && offset < piece.from + piece.size));
    if (line && (line.y < this.scroll.scrollTop || line.y + LINE > this.scroll.scrollTop + this.scroll.clientHeight)) {
      this.scroll.scrollTop = line.y - this.scroll.clientHeight / 2;
    }
    app.draw("map");
  }
}
