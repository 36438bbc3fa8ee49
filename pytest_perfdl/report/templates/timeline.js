(() => {
  // Both sides' steps on one axis, from the trace that the page holds: what is too narrow to see is drawn as one block.
  const perfdl = window.perfdl;
  const { axis, base, chart, element, plain, quantity, shorten } = perfdl;
  const LEAST_PIXELS = 2;
  const LANE = 15;
  const MOST_LANES = 60;
  const traces = new Map();

  // Slices by lane: a lane is a depth of a thread of a side.
  const read = (text) => {
    const { traceEvents: events, perfdl: about } = JSON.parse(text);
    const threads = new Map();
    const processes = new Map();
    const at = (event) => `${event.pid} ${event.tid}`;
    for (const event of events) {
      if (event.name === "process_name") processes.set(event.pid, event.args.name);
      if (event.name === "thread_name") threads.set(at(event), { pid: event.pid, name: event.args.name, slices: [] });
    }
    for (const event of events) {
      if (event.ph !== "X") continue;
      if (!threads.has(at(event))) threads.set(at(event), { pid: event.pid, name: `thread ${event.tid}`, slices: [] });
      threads.get(at(event)).slices.push({ name: event.name, pid: event.pid, start: event.ts * 1000, end: (event.ts + event.dur) * 1000, kind: event.cat ?? "", args: event.args ?? {}, color: event.cname });
    }
    const lanes = [];
    const several = new Set([...threads.values()].map(({ pid }) => pid)).size > 1;
    for (const { pid, name, slices } of [...threads.values()].sort((a, b) => a.pid - b.pid)) {
      const side = several ? (processes.get(pid) ?? "").split(",")[0] : "";
      const depths = [];
      const open = [];
      slices.sort((a, b) => a.start - b.start || b.end - a.end);
      for (const slice of slices) {
        while (open.length && open.at(-1) <= slice.start) open.pop();
        (depths[open.length] ??= []).push(slice);
        slice.side = side;
        open.push(slice.end);
      }
      depths.forEach((own, depth) => lanes.push({ label: depth ? "" : `${side} ${name}`.trim(), slices: own }));
    }
    const shown = lanes.slice(0, MOST_LANES);
    const all = shown.flatMap(({ slices }) => slices);
    const first = all.reduce((low, slice) => Math.min(low, slice.start), Infinity);
    const last = all.reduce((high, slice) => Math.max(high, slice.end), 0);
    // The slice with the largest part in the first cause, as whoever made the trace found it.
    const { selected } = about ?? {};
    const worst = (selected && all.find((slice) => slice.pid === selected.pid && slice.name === selected.name && Math.round(slice.start) === selected.start_ns)) ?? null;
    return { lanes: shown, first, last, worst, count: all.length };
  };
  const opened = (name) => {
    if (!traces.has(name)) traces.set(name, perfdl.gunzip(perfdl.embedded(name)).then(read));
    return traces.get(name);
  };
  perfdl.worstRange = async (name) => {
    const { worst } = await opened(name);
    return worst && [worst.start / 1e9, worst.end / 1e9];
  };

  const STYLES = ["annotation", "operator", "device", "idle", "faster", "slower"];
  const styleOf = ({ kind, color }) => {
    if (color === "terrible" || color === "bad") return 5;
    if (color === "good") return 4;
    if (kind === "idle") return 3;
    if (kind === "kernel" || kind.startsWith("gpu_")) return 2;
    return kind === "user_annotation" ? 0 : 1;
  };
  const words = (slice, origin) => [
    plain(shorten(slice.name, 160)),
    `${slice.side ? `${slice.side}, ` : ""}${quantity(slice.end - slice.start, "ns")} from ${quantity(slice.start - origin, "ns")}`,
    slice.args.observed_delta_ns === undefined ? "" : `${quantity(slice.args.observed_delta_ns, "ns", true)} in this observed step`,
    slice.args.verdict ? `${plain(shorten(slice.args.cause, 80))}: ${slice.args.verdict}, ${quantity(slice.args.delta_ns, "ns", true)}/step` : "",
  ].filter(Boolean).join("<br>");

  // What of the lanes is to be drawn between two times on so many pixels.
  const visible = ({ lanes, first }, from, to, pixels) => {
    const styles = STYLES.map(() => ({ base: [], x: [], y: [], text: [] }));
    const least = ((to - from) / pixels) * LEAST_PIXELS;
    const put = (style, start, end, lane, text) => {
      const bars = styles[style];
      bars.base.push((start - first) / 1e6);
      bars.x.push((end - start) / 1e6);
      bars.y.push(lane);
      bars.text.push(text);
    };
    lanes.forEach(({ slices }, lane) => {
      let block = null;
      const flush = () => {
        if (!block) return;
        const text = block.many === 1 ? words(block.one, first) : `${block.many} slices, ${quantity(block.end - block.start, "ns")}: zoom in to see them`;
        put(block.style, block.start, Math.max(block.end, block.start + least / 2), lane, text);
        block = null;
      };
      for (const slice of slices) {
        if (slice.end < from || slice.start > to) continue;
        if (block && (slice.start - block.start > least || slice.end - slice.start >= least)) flush();
        if (slice.end - slice.start >= least) put(styleOf(slice), slice.start, slice.end, lane, words(slice, first));
        else if (block) Object.assign(block, { end: Math.max(block.end, slice.end), many: block.many + 1, style: Math.max(block.style, styleOf(slice)) });
        else block = { start: slice.start, end: slice.end, many: 1, one: slice, style: styleOf(slice) };
      }
      flush();
    });
    return styles;
  };

  perfdl.timeline = async (parent, name) => {
    const trace = await opened(name);
    if (!trace.count) return;
    const whole = [0, (trace.last - trace.first) / 1e6];
    let range = whole;
    const status = element("p", { className: "note", role: "status" });
    const tell = () => { status.textContent = `Shown: ${quantity(range[0] * 1e6, "ns")} to ${quantity(range[1] * 1e6, "ns")} of ${quantity(whole[1] * 1e6, "ns")}.`; };
    let place = null;
    const show = (from, to) => {
      const width = Math.min(Math.max(to - from, 1e-5), whole[1] * 1.04);
      const start = Math.min(Math.max(from, -whole[1] * 0.02), whole[1] * 1.02 - width);
      range = [start, start + width];
      tell();
      if (window.Plotly) perfdl.draw(place);
    };
    const middle = () => (range[0] + range[1]) / 2;
    const width = () => range[1] - range[0];
    const zoom = (factor) => show(middle() - (width() * factor) / 2, middle() + (width() * factor) / 2);
    const buttons = [
      ["Zoom in", () => zoom(0.5)],
      ["Zoom out", () => zoom(2)],
      ["Earlier", () => show(range[0] - width() / 2, range[1] - width() / 2)],
      ["Later", () => show(range[0] + width() / 2, range[1] + width() / 2)],
      ["Whole step", () => show(...whole)],
    ];
    if (trace.worst) buttons.push(["Worst slice", () => {
      const [start, end] = [trace.worst.start, trace.worst.end].map((time) => (time - trace.first) / 1e6);
      show(start - (end - start), end + (end - start));
    }]);
    parent.append(element("p", { className: "actions" }, ...buttons.map(([text, press]) => {
      const button = element("button", { type: "button", textContent: text });
      button.addEventListener("click", press);
      return button;
    })));
    place = chart(parent, {
      title: "Both steps on one axis",
      note: "in ms from the start; drag to zoom. Hatched: got slower or came; dotted: got faster",
      label: `Timeline of ${trace.count} slices over ${quantity(trace.last - trace.first, "ns")}.${trace.worst ? ` The slice that lost most is ${trace.worst.name}, ${quantity(trace.worst.end - trace.worst.start, "ns")} long.` : ""} The tables above have the same figures.`,
      height: 60 + LANE * trace.lanes.length,
      make: (colors) => {
        const styles = visible(trace, range[0] * 1e6 + trace.first, range[1] * 1e6 + trace.first, Math.max(200, place?.clientWidth ?? 800));
        const fills = [colors.line, colors.quiet, colors.link, colors.warn, colors.good, colors.bad];
        const shapes = ["", "", "", "", ".", "/"];
        return {
          data: styles.map((bars, index) => ({
            type: "bar", orientation: "h", ...bars, name: STYLES[index], width: 0.86, hovertext: bars.text, hoverinfo: "text", text: undefined,
            marker: { color: fills[index], line: { color: colors.card, width: 0.5 }, pattern: { shape: shapes[index], fillmode: "overlay", fgcolor: colors.card, size: 5, solidity: 0.25 } },
          })),
          layout: {
            ...base(colors),
            barmode: "overlay",
            dragmode: "zoom",
            xaxis: axis(colors, { range: [...range], title: { text: "ms" }, fixedrange: false, zeroline: false }),
            yaxis: axis(colors, {
              autorange: false, range: [trace.lanes.length - 0.4, -0.6], showgrid: false, zeroline: false,
              tickvals: trace.lanes.flatMap(({ label }, lane) => (label ? [lane] : [])),
              ticktext: trace.lanes.flatMap(({ label }) => (label ? [plain(shorten(label, innerWidth < 700 ? 16 : 30))] : [])),
            }),
          },
        };
      },
      after: (div) => div.on("plotly_relayout", (change) => {
        const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
        if (from !== undefined) show(from, to);
        else if (change["xaxis.autorange"]) show(...whole);
      }),
    });
    parent.append(status);
    tell();
  };
})();
