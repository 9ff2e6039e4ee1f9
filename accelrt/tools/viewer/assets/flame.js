// The flame graph: what is live at the moment, by stack, the outermost frame on top.

const FLAME_ROW = 19;

class FlameGraph {
  constructor(app) {
    this.app = app;
    this.canvas = $("flame");
    this.context = this.canvas.getContext("2d");
    this.path = []; // keys from the root to what is shown at full width
    $("flame-by").addEventListener("change", () => this.show([]));
    $("flame-root").addEventListener("click", () => this.show([]));
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerleave", () => app.hover(null));
    this.canvas.addEventListener("click", (event) => this.onClick(event));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(path) {
    this.path = path;
    this.cursor = null;
    this.app.draw("flame");
  }

  // The tree of the moment: node = { key, label, size, count, children, depth }.
  build() {
    const { device, moment } = this.app, by = $("flame-by").value;
    const key = [device.device, moment, by].join();
    if (this.key === key) return;
    this.key = key;
    const { recording, allocations } = device;
    const sums = new Map(); // group -> stack -> [bytes, count]
    for (const each of device.liveAt(moment)) {
      const group = by === "stack" ? -1 : allocations[by][each];
      let stacks = sums.get(group);
      if (!stacks) sums.set(group, (stacks = new Map()));
      const sum = stacks.get(allocations.stack[each]);
      if (sum) {
        sum[0] += allocations.size[each];
        sum[1]++;
      } else stacks.set(allocations.stack[each], [allocations.size[each], 1]);
    }
    const node = (key, label, where, parent) =>
      ({ key, label, where, parent, size: 0, count: 0, children: new Map(), depth: parent ? parent.depth + 1 : 0 });
    const child = (parent, key, label, where) => {
      let found = parent.children.get(key);
      if (!found) parent.children.set(key, (found = node(key, label(), where, parent)));
      return found;
    };
    const count = (at, size, number) => {
      at.size += size;
      at.count += number;
    };
    this.root = node("root", "all live memory", null, null);
    const labels = new Colours(device, by === "stack" ? "tag" : by);
    for (const [group, stacks] of sums) {
      const top = group < 0 ? this.root : child(this.root, `g${group}`, () => labels.label(group), null);
      for (const [stack, [size, number]] of stacks) {
        if (top !== this.root) count(this.root, size, number);
        let at = top;
        count(at, size, number);
        const frames = recording.framesOf(stack);
        for (let depth = frames.length - 1; depth >= 0; depth--) {
          const frame = frames[depth];
          at = child(at, frame, () => recording.frame(frame).name, frame);
          count(at, size, number);
        }
        if (!frames.length) count(child(at, "none", () => "no stack", null), size, number);
      }
    }
  }

  draw() {
    this.build();
    const ratio = window.devicePixelRatio || 1, { canvas, context, app } = this, { theme, device } = app;
    const width = canvas.clientWidth || canvas.parentElement.clientWidth;
    const line = [this.root];
    for (const key of this.path) {
      const next = line.at(-1).children.get(key);
      if (!next) break;
      line.push(next);
    }
    this.path = line.slice(1).map((node) => node.key);
    this.boxes = line.map((node) => ({ node, x: 0, wide: width, y: node.depth }));
    const todo = [this.boxes.at(-1)];
    let deepest = line.length;
    while (todo.length) {
      const { node, x, wide, y } = todo.pop();
      deepest = Math.max(deepest, y + 1);
      let at = x;
      for (const each of [...node.children.values()].sort((one, other) => other.size - one.size)) {
        const part = (wide * each.size) / node.size;
        const box = { node: each, x: at, wide: part, y: y + 1 };
        at += part;
        if (part < 0.6) break;
        this.boxes.push(box);
        todo.push(box);
      }
    }
    const height = deepest * FLAME_ROW + 2;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const box of this.boxes) this.drawBox(box, theme);
    $("flame-text").textContent = this.root.size
      ? `${bytes(line.at(-1).size)} in ${whole.format(line.at(-1).count)} allocations` +
        (line.length > 1 ? ` of ${bytes(this.root.size)}` : "")
      : "nothing is live at this moment";
    $("flame-root").disabled = line.length < 2;
  }

  drawBox({ node, x, wide, y }, theme) {
    const { context } = this;
    const hue = node.parent ? hashOf(node.label) % HUES.length : NONE;
    const top = y * FLAME_ROW;
    context.fillStyle = theme.css[LIVE][hue];
    context.globalAlpha = y < this.path.length ? 0.6 : 1;
    context.fillRect(x, top, Math.max(0.5, wide - 0.75), FLAME_ROW - 1);
    context.globalAlpha = 1;
    if (this.cursor === node) {
      context.strokeStyle = theme.text;
      context.lineWidth = 2;
      context.strokeRect(x + 1, top + 1, Math.max(1, wide - 2.5), FLAME_ROW - 3);
    }
    if (wide < 28) return;
    context.fillStyle = y < this.path.length ? theme.text : theme.ink[hue];
    const room = wide - 10;
    let label = `${node.label}  ${bytes(node.size)}`;
    if (context.measureText(label).width > room) label = node.label;
    if (context.measureText(label).width > room) {
      const fits = Math.floor((label.length * room) / context.measureText(label).width) - 1;
      label = fits > 1 ? label.slice(0, fits) + "…" : "";
    }
    context.fillText(label, x + 5, top + FLAME_ROW / 2);
  }

  hit(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = Math.floor((event.clientY - box.top) / FLAME_ROW);
    const found = (this.boxes || []).find((each) => each.y === y && x >= each.x && x < each.x + each.wide);
    return found ? found.node : null;
  }

  onMove(event) {
    const node = this.hit(event);
    this.app.hover(node && { node, root: this.root }, event);
  }

  pathOf(node) {
    const path = [];
    for (let at = node; at.parent; at = at.parent) path.unshift(at.key);
    return path;
  }

  onClick(event) {
    const node = this.hit(event);
    if (!node) return;
    this.app.pin({ node, root: this.root });
    this.show(this.pathOf(node));
  }

  onKey(event) {
    const now = this.cursor || this.root;
    const sorted = (node) => [...node.children.values()].sort((one, other) => other.size - one.size);
    const beside = (way) => {
      if (!now.parent) return now;
      const all = sorted(now.parent);
      return all[Math.min(Math.max(all.indexOf(now) + way, 0), all.length - 1)];
    };
    const next = {
      ArrowDown: () => sorted(now)[0] || now,
      ArrowUp: () => now.parent || now,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
    }[event.key];
    if (event.key === "Escape") this.show([]);
    if (event.key === "Enter") {
      this.show(this.pathOf(now));
      this.cursor = now;
    }
    if (!next) return;
    event.preventDefault();
    this.cursor = next();
    this.app.hover({ node: this.cursor, root: this.root });
    this.app.draw("flame");
  }
}

function hashOf(text) {
  let hash = 7;
  for (let at = 0; at < text.length; at++) hash = (hash * 31 + text.charCodeAt(at)) >>> 0;
  return (hash ^ (hash >>> 13)) >>> 0;
}
