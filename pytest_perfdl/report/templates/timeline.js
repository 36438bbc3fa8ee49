(() => {
  // One observed step of each side on one axis, drawn on a canvas from the trace that the page holds.
  const perfdl = window.perfdl;
  const { element, percent, quantity, theme } = perfdl;
  const RULER = 22;
  const HEADING = 18;
  const LANE = 18;
  const MOST_LANES = 60;
  const LEAST_PIXELS = 1.5;
  // Below this share of the largest change a slice is not marked.
  const LEAST_MARK = 0.01;
  const FONT = "11px system-ui, 'Segoe UI', 'Liberation Sans', sans-serif";
  const traces = new Map();

  // Slices of causes end in the cause's change, " (new, +7.164 ms/step)", and steps in their number: neither is part of
  // the name.
  const nameOf = (event) => event.name
    .replace(/ \((?:(?:new|gone), )?[+-]?[\d.]+ ?(?:%|[a-zµ]+\/step)\)$| \((?:new|gone|changed)\)$/, "")
    .replace(/^(ProfilerStep)#\d+$/, "$1").replace(/^perfdl\.module: /, "");
  // Where there is no room: without what many names begin or end with.
  const shortName = (name) => name.replace(/^(void |aten::|autograd::engine::evaluate_function: )/, "").replace(/(.)[<(].*$/, "$1");
  const isDevice = ({ kind }) => kind === "kernel" || kind.startsWith("gpu_");

  // Which slices of the two sides are the same work: equal names and equal surrounding slices, in order of time. A
  // kernel is in what launched it.
  const match = (slices) => {
    const launches = new Map();
    for (const slice of slices) {
      if (!isDevice(slice) && slice.args.correlation !== undefined) launches.set(`${slice.pid} ${slice.args.correlation}`, slice);
    }
    const around = (slice) => slice.parent ?? (isDevice(slice) ? launches.get(`${slice.pid} ${slice.args.correlation}`) : null);
    const path = (slice) => (slice.path ??= `${around(slice) ? path(around(slice)) : slice.thread}/${slice.kind} ${slice.name}`);
    const waiting = new Map();
    for (const slice of slices) {
      const key = path(slice);
      if (!waiting.has(key)) waiting.set(key, new Map());
      const sides = waiting.get(key);
      if (!sides.has(slice.side)) sides.set(slice.side, []);
      sides.get(slice.side).push(slice);
    }
    for (const sides of waiting.values()) {
      const [first, second] = [sides.get("baseline") ?? [], sides.get("current") ?? []];
      for (let place = 0; place < Math.min(first.length, second.length); place += 1) {
        first[place].twin = second[place];
        second[place].twin = first[place];
      }
    }
  };

  const read = (text) => {
    const { traceEvents: events, perfdl: about } = JSON.parse(text);
    const threads = new Map();
    const processes = new Map();
    const at = (event) => `${event.pid} ${event.tid}`;
    for (const event of events) {
      if (event.name === "process_name") processes.set(event.pid, event.args.name);
      if (event.name === "thread_name") threads.set(at(event), { pid: event.pid, name: event.args.name, slices: [] });
    }
    const several = new Set([...threads.values()].map(({ pid }) => pid)).size > 1;
    for (const event of events) {
      if (event.ph !== "X") continue;
      if (!threads.has(at(event))) threads.set(at(event), { pid: event.pid, name: `thread ${event.tid}`, slices: [] });
      const thread = threads.get(at(event));
      const side = several ? (processes.get(event.pid) ?? "").split(/[ ,]/)[0] : "";
      thread.slices.push({
        name: nameOf(event), start: event.ts * 1000, end: (event.ts + event.dur) * 1000, kind: event.cat ?? "", args: event.args ?? {},
        pid: event.pid, fullName: event.name, side, thread: thread.name, parent: null, inside: 0, twin: null,
      });
    }
    const rows = [];
    let lanes = 0;
    for (const { pid, name, slices } of [...threads.values()].sort((a, b) => a.pid - b.pid)) {
      if (!slices.length) continue;
      const depths = [];
      const open = [];
      slices.sort((a, b) => a.start - b.start || b.end - a.end);
      for (const slice of slices) {
        while (open.length && open.at(-1).end <= slice.start) open.pop();
        slice.parent = open.at(-1) ?? null;
        if (slice.parent) slice.parent.inside += slice.end - slice.start;
        (depths[open.length] ??= []).push(slice);
        open.push(slice);
      }
      const side = slices[0].side;
      if (lanes < MOST_LANES) rows.push({ label: [side, name].filter(Boolean).join(": "), slices: [], height: HEADING });
      for (const own of depths) {
        if (lanes >= MOST_LANES) break;
        lanes += 1;
        for (const slice of own) slice.row = rows.length;
        rows.push({ label: "", slices: own, height: LANE });
      }
    }
    let top = RULER;
    for (const row of rows) {
      row.top = top;
      top += row.height;
    }
    const all = rows.flatMap(({ slices }) => slices);
    match(all);
    // What a slice gained or lost beyond the slices inside it, of slices that belong to a cause and at most what the
    // cause gained in the measured steps: one observed step of each side also differs by chance.
    const own = (slice) => Math.max(0, slice.end - slice.start - slice.inside);
    for (const slice of all) {
      const { delta_ns: measured = 0, verdict } = slice.args;
      const observed = slice.side === "current" ? own(slice) - (slice.twin ? own(slice.twin) : 0) : verdict === "gone" ? -own(slice) : 0;
      slice.change = observed * measured > 0 ? Math.sign(measured) * Math.min(Math.abs(observed), Math.abs(measured)) : 0;
    }
    const first = all.reduce((low, slice) => Math.min(low, slice.start), Infinity);
    const last = all.reduce((high, slice) => Math.max(high, slice.end), 0);
    const largest = all.reduce((found, slice) => Math.max(found, Math.abs(slice.change)), 0);
    const selected = about?.selected;
    const worst = (selected && all.find((slice) => slice.pid === selected.pid && slice.fullName === selected.name && Math.round(slice.start) === selected.start_ns))
      ?? all.reduce((found, slice) => (slice.change > (found?.change ?? 0) ? slice : found), null);
    return { rows, first, last, worst, largest, count: all.length, height: top + 4 };
  };
  const opened = (name) => {
    if (!traces.has(name)) traces.set(name, perfdl.gunzip(perfdl.embedded(name)).then(read));
    return traces.get(name);
  };
  // What Perfetto is asked to show, in seconds of the trace's time.
  perfdl.worstRange = async (name) => {
    const { worst } = await opened(name);
    return worst && [worst.start / 1e9, worst.end / 1e9];
  };

  const fillOf = (slice, colors) => {
    if (slice.kind === "idle") return [colors.warn, 0.22];
    if (isDevice(slice)) return [colors.link, 0.42];
    return slice.kind === "user_annotation" ? [colors.quiet, 0.2] : [colors.link, 0.2];
  };
  const OTHER = { baseline: "current", current: "baseline" };

  const describe = (slice, origin) => {
    const lasts = slice.end - slice.start;
    const lines = [`${slice.side ? `${slice.side}: ` : ""}${quantity(lasts, "ns")}, starts at ${quantity(slice.start - origin, "ns")}`];
    if (slice.twin) {
      const [before, now] = slice.side === "baseline" ? [slice, slice.twin] : [slice.twin, slice];
      const [from, to] = [before, now].map((each) => each.end - each.start);
      lines.push(`${OTHER[slice.side]}: ${quantity(slice.twin.end - slice.twin.start, "ns")}. Difference: ${quantity(to - from, "ns", true) || "0 ns"}${from ? ` (${percent(to / from - 1)})` : ""}`);
    } else if (slice.side) {
      lines.push(`No matching slice in the ${OTHER[slice.side]} step: ${slice.side === "current" ? "new" : "gone"}`);
    }
    if (slice.args.cause !== undefined && slice.args.delta_ns !== undefined) lines.push(`Cause ${slice.args.cause}: ${slice.args.verdict}, ${quantity(slice.args.delta_ns, "ns", true)}/step in the measured steps`);
    return lines;
  };

  class Timeline {
    constructor(parent, trace) {
      this.trace = trace;
      this.whole = [trace.first, trace.last];
      this.range = [...this.whole];
      this.selected = this.cursor = this.span = this.mark = this.drag = null;
      this.canvas = element("canvas", { tabIndex: 0, role: "application" });
      this.canvas.setAttribute("aria-label", `Timeline of one observed step of baseline and current, ${trace.count} slices over ${quantity(trace.last - trace.first, "ns")}.${trace.worst ? ` The slice that gained most is ${trace.worst.name}, ${quantity(trace.worst.end - trace.worst.start, "ns")} long.` : ""} Arrow keys go from slice to slice, Enter selects, plus and minus zoom, M measures, Escape clears.`);
      this.tip = element("div", { className: "tip", hidden: true });
      this.details = element("div", { className: "selection", role: "status" });
      this.frame = element("div", { className: "timeline" }, this.canvas, this.tip);
      this.frame.style.height = `${trace.height}px`;
      const buttons = [
        ["Zoom in", () => this.zoom(0.5)], ["Zoom out", () => this.zoom(2)],
        ["Earlier", () => this.pan(-0.5)], ["Later", () => this.pan(0.5)], ["Whole step", () => this.show(...this.whole)],
        ["Zoom to selection", () => this.zoomToSelection()],
      ];
      if (trace.worst) buttons.push(["Largest change", () => { this.select(trace.worst); this.zoomToSelection(); }]);
      parent.append(
        element("p", { className: "note", textContent: "One observed step of baseline and current. Marks: time that a slice of a cause gained (red) or lost (green); the higher the mark, the larger the change. Click or Enter selects a slice and its match in the other step. Drag, or press M at two slices, to measure." }),
        element("p", { className: "actions" }, ...buttons.map(([text, press]) => {
          const button = element("button", { type: "button", textContent: text });
          button.addEventListener("click", press);
          return button;
        })),
        this.frame,
        this.details,
      );
      this.listen();
      this.tell();
      this.draw();
      new ResizeObserver(() => this.draw()).observe(this.frame);
    }

    get width() { return Math.max(1, this.frame.clientWidth); }
    x(time) { return ((time - this.range[0]) / (this.range[1] - this.range[0])) * this.width; }
    time(x) { return this.range[0] + (x / this.width) * (this.range[1] - this.range[0]); }

    show(from, to) {
      const [first, last] = this.whole;
      const width = Math.min(Math.max(to - from, 10), last - first);
      const start = Math.min(Math.max(from, first), last - width);
      this.range = [start, start + width];
      this.tell();
      this.draw();
    }
    zoom(factor, around = null) {
      const [from, to] = this.range;
      const at = around ?? (this.cursor ? (this.cursor.start + this.cursor.end) / 2 : (from + to) / 2);
      const share = Math.min(1, Math.max(0, (at - from) / (to - from)));
      const width = (to - from) * factor;
      this.show(at - width * share, at + width * (1 - share));
    }
    pan(share) {
      const [from, to] = this.range;
      this.show(from + (to - from) * share, to + (to - from) * share);
    }
    zoomToSelection() {
      const target = this.span ? { start: this.span[0], end: this.span[1] } : this.selected;
      if (!target) return;
      const room = (target.end - target.start) * 0.5;
      this.show(target.start - room, target.end + room);
    }
    select(slice) {
      this.selected = this.cursor = slice;
      this.tell();
      this.draw();
    }
    reveal(slice) {
      const [from, to] = this.range;
      if (slice.end > from && slice.start < to && this.x(slice.end) - this.x(slice.start) > 3) this.draw();
      else if (slice.end - slice.start < (to - from) / 200) {
        const room = (slice.end - slice.start) * 20;
        this.show(slice.start - room, slice.end + room);
      } else this.show((slice.start + slice.end - (to - from)) / 2, (slice.start + slice.end + (to - from)) / 2);
    }

    tell() {
      const { first, last } = this.trace;
      const isWhole = this.range[0] <= first && this.range[1] >= last;
      this.canvas.dataset.from = this.range[0] - first;
      this.canvas.dataset.to = this.range[1] - first;
      const lines = [];
      if (this.selected) {
        lines.push(element("p", {}, element("strong", { textContent: this.selected.name })));
        lines.push(...describe(this.selected, first).map((text) => element("p", { textContent: text })));
      }
      if (this.cursor && this.cursor !== this.selected) lines.push(element("p", { textContent: `At ${this.cursor.name}, ${quantity(this.cursor.end - this.cursor.start, "ns")}` }));
      if (this.span) lines.push(element("p", { className: "span", textContent: `Measured span: ${quantity(this.span[1] - this.span[0], "ns")}, from ${quantity(this.span[0] - first, "ns")} to ${quantity(this.span[1] - first, "ns")}` }));
      else if (this.mark) lines.push(element("p", { className: "span", textContent: `Measuring from the start of ${this.mark.name}: press M at another slice` }));
      lines.push(element("p", { className: "muted", textContent: isWhole ? `Visible: the whole step, ${quantity(last - first, "ns")}` : `Visible: ${quantity(this.range[0] - first, "ns")} to ${quantity(this.range[1] - first, "ns")} of ${quantity(last - first, "ns")}` }));
      this.details.replaceChildren(...lines);
    }

    draw() {
      const { canvas, trace, width } = this;
      const scale = window.devicePixelRatio || 1;
      const colors = theme();
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(trace.height * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(trace.height * scale);
      }
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, trace.height);
      pen.font = FONT;
      pen.textBaseline = "middle";
      this.letter = pen.measureText("aten::native_layer_norm").width / 23;
      this.drawRuler(pen, colors);
      for (const row of trace.rows) {
        if (row.label) {
          pen.fillStyle = colors.quiet;
          pen.fillText(row.label, 0, row.top + row.height / 2 + 2, width);
        } else this.drawLane(pen, colors, row);
      }
      for (const [slice, dash, color] of [[this.selected?.twin, [4, 3], colors.ink], [this.cursor, [2, 2], colors.link], [this.selected, [], colors.ink]]) {
        if (!slice || slice.row === undefined) continue;
        pen.setLineDash(dash);
        pen.lineWidth = 2;
        pen.strokeStyle = color;
        const left = this.x(slice.start);
        pen.strokeRect(left, trace.rows[slice.row].top + 1, Math.max(2, this.x(slice.end) - left), LANE - 3);
      }
      pen.setLineDash([]);
      if (this.span) {
        const [left, right] = this.span.map((time) => this.x(time));
        pen.globalAlpha = 0.14;
        pen.fillStyle = colors.ink;
        pen.fillRect(left, 0, right - left, trace.height);
        pen.globalAlpha = 1;
        pen.fillStyle = colors.ink;
        for (const at of [left, right]) pen.fillRect(at - 0.5, 0, 1, trace.height);
        const text = quantity(this.span[1] - this.span[0], "ns");
        const size = pen.measureText(text).width + 8;
        const at = Math.min(Math.max((left + right - size) / 2, 0), width - size);
        pen.fillRect(at, 2, size, 16);
        pen.fillStyle = colors.card;
        pen.fillText(text, at + 4, 10.5);
      }
    }

    drawRuler(pen, colors) {
      const [from, to] = this.range;
      const wanted = ((to - from) * 90) / this.width;
      const power = 10 ** Math.floor(Math.log10(wanted));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= wanted);
      const origin = this.trace.first;
      pen.strokeStyle = colors.line;
      pen.fillStyle = colors.quiet;
      pen.lineWidth = 1;
      for (let tick = Math.ceil((from - origin) / step) * step; tick <= to - origin; tick += step) {
        const at = Math.round(this.x(tick + origin)) + 0.5;
        pen.beginPath();
        pen.moveTo(at, 14);
        pen.lineTo(at, this.trace.height);
        pen.stroke();
        pen.fillText(tick ? quantity(tick, "ns").replace(/\.?0+ /, " ") : "0", at + 3, 8);
      }
    }

    drawLane(pen, colors, row) {
      const [from, to] = this.range;
      const { largest } = this.trace;
      const tall = LANE - 2;
      let block = null;
      const flush = () => {
        if (!block) return;
        pen.globalAlpha = 0.3;
        pen.fillStyle = colors.quiet;
        pen.fillRect(block.left, row.top + 3, Math.max(1, block.right - block.left), tall - 4);
        this.drawMark(pen, colors, row, block.left, Math.max(1, block.right - block.left), block.change);
        block = null;
      };
      for (const slice of row.slices) {
        if (slice.end < from || slice.start > to) continue;
        const left = Math.max(-2, this.x(slice.start));
        const right = Math.min(this.width + 2, this.x(slice.end));
        if (right - left < LEAST_PIXELS) {
          if (block && left - block.right < 1) Object.assign(block, { right: Math.max(block.right, right), change: block.change + slice.change });
          else { flush(); block = { left, right, change: slice.change }; }
          continue;
        }
        flush();
        const [color, alpha] = fillOf(slice, colors);
        pen.globalAlpha = alpha;
        pen.fillStyle = color;
        pen.fillRect(left, row.top, Math.max(1, right - left - 0.5), tall);
        if (largest && Math.abs(slice.change) > largest * LEAST_MARK) this.drawMark(pen, colors, row, left, right - left - 0.5, slice.change);
        pen.globalAlpha = 1;
        const shown = Math.max(left, 0);
        const room = Math.min(right, this.width) - shown - 5;
        const text = room < 3 * this.letter ? "" : this.fit(pen, slice.name, room);
        if (!text) continue;
        pen.fillStyle = colors.ink;
        pen.fillText(text, shown + 3, row.top + tall / 2 + 0.5, room + 2);
      }
      flush();
      pen.globalAlpha = 1;
    }
    // As much of a name as there is room for.
    fit(pen, name, room) {
      let text = name.length * this.letter > room ? shortName(name) : name;
      for (let tries = 0; tries < 3; tries += 1) {
        const width = pen.measureText(text).width;
        if (width <= room) return text;
        const letters = Math.floor((text.length * room) / width) - 1;
        if (letters < 2) return "";
        text = `${text.slice(0, letters)}…`;
      }
      return "";
    }
    drawMark(pen, colors, row, left, wide, change) {
      const { largest } = this.trace;
      if (!largest || Math.abs(change) <= largest * LEAST_MARK) return;
      const tall = Math.max(2, (LANE - 2) * Math.min(1, Math.abs(change) / largest));
      pen.globalAlpha = 0.5;
      pen.fillStyle = change > 0 ? colors.bad : colors.good;
      pen.fillRect(left, row.top + LANE - 2 - tall, Math.max(1, wide), tall);
    }

    hit(x, y) {
      const row = this.trace.rows.find(({ top, height, slices }) => slices.length && y >= top && y < top + height);
      if (!row) return null;
      const slack = (this.range[1] - this.range[0]) / this.width;
      const time = this.time(x);
      return row.slices.reduce((best, slice) => {
        const away = Math.max(slice.start - time, time - slice.end, 0);
        return away <= 2 * slack && (!best || away < best[0]) ? [away, slice] : best;
      }, null)?.[1] ?? null;
    }
    listen() {
      const { canvas } = this;
      const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
      canvas.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        canvas.setPointerCapture(event.pointerId);
        this.drag = { from: at(event), moved: false };
      });
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = at(event);
        if (!this.drag) {
          const slice = this.hit(x, y);
          this.tip.hidden = !slice;
          if (slice) {
            this.tip.replaceChildren(element("strong", { textContent: slice.name }), ...describe(slice, this.trace.first).map((text) => element("div", { textContent: text })));
            this.tip.style.left = `${Math.min(x + 12, Math.max(0, this.width - 280))}px`;
            this.tip.style.top = `${y + 16}px`;
          }
          return;
        }
        if (!this.drag.moved && Math.abs(x - this.drag.from[0]) < 5) return;
        this.drag.moved = true;
        this.tip.hidden = true;
        this.span = [this.drag.from[0], x].map((place) => this.time(Math.min(Math.max(place, 0), this.width))).sort((a, b) => a - b);
        this.draw();
      });
      canvas.addEventListener("pointerup", (event) => {
        const drag = this.drag;
        this.drag = null;
        if (!drag) return;
        if (drag.moved) this.tell();
        else { this.span = null; this.select(this.hit(...at(event))); }
      });
      canvas.addEventListener("pointercancel", () => { this.drag = null; });
      canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      canvas.addEventListener("wheel", (event) => {
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(at(event)[0]));
        } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          event.preventDefault();
          this.pan(event.deltaX / this.width);
        }
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        const press = {
          ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), ArrowDown: () => this.climb(1), ArrowUp: () => this.climb(-1),
          Enter: () => this.cursor && this.select(this.cursor), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(...this.whole),
          m: () => this.measure(), M: () => this.measure(),
          Escape: () => { this.span = this.mark = null; this.select(null); },
        }[event.key];
        if (!press) return;
        event.preventDefault();
        press();
      });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
      perfdl.onTheme.push(() => this.draw());
    }
    // By keys: the cursor goes along a lane, or to what is above or below it.
    step(direction) {
      const slices = this.cursor ? this.trace.rows[this.cursor.row].slices : this.trace.rows.find((row) => row.slices.length).slices;
      const place = this.cursor ? slices.indexOf(this.cursor) + direction : slices.findIndex(({ end }) => end > this.range[0]);
      this.move(slices[Math.min(Math.max(place, 0), slices.length - 1)]);
    }
    climb(direction) {
      if (!this.cursor) { this.step(1); return; }
      const { rows } = this.trace;
      const middle = (this.cursor.start + this.cursor.end) / 2;
      for (let row = this.cursor.row + direction; rows[row]; row += direction) {
        if (!rows[row].slices.length) continue;
        const away = (slice) => Math.max(slice.start - middle, middle - slice.end, 0);
        this.move(rows[row].slices.reduce((best, slice) => (away(slice) < away(best) ? slice : best)));
        return;
      }
    }
    move(slice) {
      this.cursor = slice;
      this.reveal(slice);
      this.tell();
    }
    measure() {
      if (!this.cursor) return;
      if (this.mark) {
        this.span = [Math.min(this.mark.start, this.cursor.start), Math.max(this.mark.end, this.cursor.end)];
        this.mark = null;
      } else {
        this.mark = this.cursor;
        this.span = null;
      }
      this.tell();
      this.draw();
    }
  }

  perfdl.timeline = async (parent, name) => {
    const trace = await opened(name);
    if (trace.count) new Timeline(parent, trace);
  };
})();
