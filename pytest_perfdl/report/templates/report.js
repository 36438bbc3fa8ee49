(() => {
  // A test's tables and charts are made from the page's data when it is opened.
  const perfdl = window.perfdl;
  const { axis, base, chart, element, median, percent, plain, quantity, scaleOf, shorten } = perfdl;
  const parsed = (id) => JSON.parse(document.getElementById(id).textContent);
  let names = null;
  let made = 0;

  // A table like those that are in the page already: columns are [heading, kind, cell], cells [text, number to sort by].
  const table = (parent, title, columns, rows, show = 40) => {
    const id = `table-${(made += 1)}`;
    const head = element("tr", {}, ...columns.map(([text, kind]) => {
      const cell = element("th", { scope: "col", textContent: text });
      cell.dataset.sort = kind;
      if (kind === "number") cell.className = "number";
      return cell;
    }));
    const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map(([text, kind, make], index) => {
      const [shown, value] = make(row);
      const cell = element(index ? "td" : "th", {}, index ? shown : element("code", { textContent: shown }));
      if (index) cell.dataset.label = text;
      else { cell.scope = "row"; cell.className = "wide"; }
      if (kind === "number") { cell.className = "number"; cell.dataset.value = Number.isFinite(value) ? value : ""; }
      return cell;
    }))));
    const whole = element("table", { id }, element("caption", { className: "hidden", textContent: title }), element("thead", {}, head), body);
    whole.dataset.sortable = "";
    whole.dataset.show = show;
    const holder = element("div", {});
    if (rows.length > 8) {
      const input = element("input", { type: "search", placeholder: "name", autocomplete: "off" });
      input.dataset.filter = id;
      holder.append(element("p", { className: "tools" }, element("label", {}, "Filter ", input)));
    }
    holder.append(element("div", { className: "scroll", role: "region", "aria-label": title, tabindex: "0" }, whole));
    parent.append(holder);
    perfdl.enhance(holder);
  };
  const folded = (parent, title, fill) => {
    const details = element("details", { className: "plain" }, element("summary", { textContent: title }));
    details.addEventListener("toggle", () => fill(details), { once: true });
    parent.append(details);
  };
  const unfolded = (parent, title, fill) => {
    const own = section(parent, title);
    fill(own);
  };
  const section = (place, title) => {
    const made = element("section", {}, element("h4", { textContent: title }));
    place.append(made);
    return made;
  };
  // A function of Python as everywhere on the page: "forward (model.py:42)" for "model.py(42): forward".
  const readable = (name) => name.replace(/^([^<].*)\((\d+)\): (.+)$/s, "$3 ($1:$2)");
  const difference = (value) => [quantity(value, "ns", true), value ?? NaN];
  const time = (value) => [quantity(value, "ns"), value ?? NaN];
  const ratio = (from, to) => (from && to !== null ? [percent(to / from - 1), to / from - 1] : ["", NaN]);

  const EFFECTS = [["more calls", "fewer calls"], ["slower per call", "faster per call"], ["different inputs", "different inputs"], ["less overlap", "more overlap"]];
  const because = (effects) => {
    const largest = Math.max(...effects.map(Math.abs));
    return effects
      .map((ns, index) => [EFFECTS[index][ns < 0 ? 1 : 0], ns])
      .filter(([, ns]) => ns && Math.abs(ns) >= largest / 20)
      .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
      .map(([word, ns]) => `${word} ${quantity(ns, "ns", true)}`)
      .join(", ");
  };
  // Idle time is in pieces whose number means nothing.
  const count = (row, place) => (names[row[1]] === "idle" ? ["", NaN] : [quantity(row[place], "1"), row[place] ?? NaN]);
  const fillRows = (place, found) => {
    names ??= parsed("perfdl-names");
    unfolded(place, "All operators and kernels, per step", (details) => table(
      details,
      "Every operator, kernel and kind of idle time (means of the profiled steps)",
      [
        ["Name", "text", (row) => [(names[row[0]] ? `${names[row[0]]}: ` : "") + readable(names[row[2]])]],
        ["Kind", "text", (row) => [names[row[1]]]],
        ["Baseline count", "number", (row) => count(row, 3)],
        ["Current count", "number", (row) => count(row, 4)],
        ["Baseline time", "number", (row) => time(row[5])],
        ["Current time", "number", (row) => time(row[6])],
        ["Difference", "number", (row) => (found.compared ? difference((row[6] ?? 0) - (row[5] ?? 0)) : ["", NaN])],
        ["Change", "number", (row) => ratio(row[5], row[6])],
        ["Effects", "text", (row) => [row[9] ? because(row[9]) : ""]],
        ["Matched by", "text", (row) => [found.compared ? (row[7] === undefined ? "" : `${names[row[7]]}${row[8] === null || row[8] === undefined ? "" : `, ${Math.round(row[8] * 100)}%`}`) || (row[5] === null ? "new" : row[6] === null ? "gone" : "") : ""]],
      ],
      found.rows,
    ));
  };

  const fillWaterfall = (place, found) => {
    for (const { call, base_ns: before, new_ns: now, timed, bars } of found.accounts) {
      if (!bars.length) continue;
      const own = call ? section(place, call) : place;
      let at = before;
      const ends = [before, ...bars.map(([, ns]) => (at += ns)), now];
      const [low, high] = [Math.min(...ends), Math.max(...ends)];
      const room = (high - low) * (innerWidth < 700 ? 0.8 : 0.35) || high * 0.1;
      const from = low - room > high * 0.25 ? low - room : 0;
      const [scale, word] = scaleOf([high], "ns");
      const label = (name) => plain(shorten(readable(name), innerWidth < 700 ? 18 : 44));
      const ids = ["baseline", ...bars.map(([name], index) => `${index} ${name}`), "current"];
      const height = 70 + 26 * ids.length;
      if (perfdl.hasCharts) chart(own, {
        title: timed ? "Step time without the profiler" : "Profiled step",
        note: `the bars add up exactly to the difference${timed ? "; profiler overhead: difference between the change without and with the profiler" : ""}${from ? "; the axis does not start at zero" : ""}`,
        label: `From ${quantity(before, "ns")} to ${quantity(now, "ns")}: ${bars.map(([name, ns]) => `${name} ${quantity(ns, "ns", true)}`).join(", ")}.`,
        height,
        make: (colors) => ({
          data: [{
            type: "waterfall", orientation: "h", y: ids, x: [before, ...bars.map(([, ns]) => ns), now].map((value) => value / scale),
            measure: ["absolute", ...bars.map(() => "relative"), "total"],
            text: [quantity(before, "ns"), ...bars.map(([, ns]) => quantity(ns, "ns", true)), quantity(now, "ns")],
            textposition: "outside", cliponaxis: false, hoverinfo: "text", textfont: { color: colors.ink },
            hovertext: [`baseline: ${quantity(before, "ns")}`, ...bars.map(([name, ns]) => `${plain(shorten(readable(name), 200))}<br>${quantity(ns, "ns", true)} per step`), `current: ${quantity(now, "ns")}`],
            increasing: { marker: { color: colors.bad } }, decreasing: { marker: { color: colors.good } }, totals: { marker: { color: colors.quiet } },
            connector: { line: { color: colors.line } },
          }],
          layout: {
            ...base(colors),
            xaxis: axis(colors, { title: { text: word }, range: [from / scale, (high + room) / scale], zeroline: false }),
            yaxis: axis(colors, { autorange: "reversed", showgrid: false, tickvals: ids, ticktext: ["baseline", ...bars.map(([name]) => label(name)), "current"] }),
          },
        }),
      });
      folded(own, "The same as a table", (details) => table(details, "Changes of the step time", [
        ["Part", "text", ([name]) => [readable(name)]],
        ["Change per step", "number", ([, ns]) => difference(ns)],
        ["Share of the change", "number", ([, ns]) => (now === before ? ["", NaN] : [`${((ns / (now - before)) * 100).toFixed(1)}%`, ns / (now - before)])],
      ], bars));
    }
  };

  // A side of an operator: [nanoseconds, calls, FLOPs, bytes, share of its roofline, what bounds it], of a mean step.
  const achieved = (side, at) => (side && side[at] && side[0] ? (side[at] * 1e9) / side[0] : NaN);
  const share = (value) => (value === null || value === undefined ? "" : `${(value * 100).toFixed(1)}%`);
  const shapesOf = (text) => (text ? JSON.parse(text).filter((shape) => shape.length).map((shape) => shape.join("×")).join(", ") : "");
  // What both sides say, once where that is the same.
  const both = (row, say) => [...new Set([row[4], row[5]].filter(Boolean).map(say).filter(Boolean))].join(" → ");
  const speed = (side, at, unit) => (Number.isFinite(achieved(side, at)) ? `${quantity(achieved(side, at), unit)}/s` : "");
  const now = (row) => row[5] ?? row[4];
  const fillRoofline = (place, found) => {
    const { rows, left_out: leftOut } = found.roofline;
    if (!rows.length) return;
    names ??= parsed("perfdl-names");
    const own = section(place, "Utilization: operators against the roofline");
    const named = (row) => (names[row[0]] ? `${names[row[0]]}: ` : "") + (names[row[1]] || "unknown operator");
    const what = (row) => [shapesOf(names[row[2]]), names[row[3]]].filter(Boolean).join(" ");
    if (perfdl.hasCharts) drawRoofline(own, found.roofline, named, what);
    table(own, "Work and time of the operators of the profiled steps, per step", [
      ["Operator", "text", (row) => [`${named(row)} ${what(row)}`.trim()]],
      ["Calls per step", "number", (row) => [both(row, (side) => quantity(side[1], "1")), now(row)[1]]],
      ["Time per step", "number", (row) => [both(row, (side) => quantity(side[0], "ns")), now(row)[0]]],
      ["FLOP/s", "number", (row) => [both(row, (side) => speed(side, 2, "flop")), achieved(now(row), 2)]],
      ["Bytes/s", "number", (row) => [both(row, (side) => speed(side, 3, "B")), achieved(now(row), 3)]],
      ["Share of roofline", "number", (row) => [both(row, (side) => share(side[4])), now(row)[4] ?? NaN]],
      ["Bound by", "text", (row) => [both(row, (side) => side[5])]],
      ["On", "text", (row) => [found.compared && !(row[4] && row[5]) ? (row[4] ? "baseline only" : "current only") : ""]],
    ].filter(([heading, , make]) => !["On", "FLOP/s"].includes(heading) || rows.some((row) => make(row)[0])), rows, 12);
    if (leftOut) own.append(element("p", { className: "note", textContent: `${leftOut} more operators with less time are not listed.` }));
  };

  const drawRoofline = (own, { rows, flops_per_s: peaks, bandwidths }, named, what) => {
    const placed = (side) => side && side[0] > 0 && side[3] > 0;
    const shown = rows.filter((row) => placed(row[4]) || placed(row[5]));
    if (!shown.length) return;
    const sides = shown.flatMap((row) => [row[4], row[5]]).filter(placed);
    const memory = bandwidths.length ? bandwidths.at(-1)[1] : 0;
    const cache = Math.max(0, ...bandwidths.map(([, rate]) => rate));
    const fastest = Math.max(0, ...Object.values(peaks));
    const known = sides.filter((side) => side[2] > 0).map((side) => side[2] / side[3]);
    const ridges = memory && fastest ? [Math.min(...Object.values(peaks)) / cache] : [];
    const left = Math.min(1, ...known, ...ridges) / 4;
    const right = Math.max(4, ...known, ...(memory && fastest ? [fastest / memory] : [])) * 4;
    // What has no FLOPs that are counted stands at the left edge, as far below the memory's roof as its bytes a second.
    const at = (side) => (side[2] > 0 ? [side[2] / side[3], achieved(side, 2) / 1e9] : [left * 1.2, (achieved(side, 3) * left * 1.2) / 1e9]);
    const longest = Math.max(...sides.map((side) => side[0]));
    const compared = rows.some((row) => row[4]);
    const hover = (word, row, side) => [`${word}: ${plain(named(row))}`, plain(what(row)), [`${quantity(side[0], "ns")} per step`, speed(side, 2, "flop"), speed(side, 3, "B")].filter(Boolean).join(", "), side[4] === null ? "" : `${share(side[4])} of its roofline, ${side[5]}-bound`].filter(Boolean).join("<br>");
    chart(own, {
      title: "Roofline",
      note: `one mark per operator and input shapes, larger for more time${compared ? "; open marks: baseline; filled marks: current; lines join the same shapes and type" : ""}. Solid roof: limit for data in memory; dotted roof: limit for data in the cache. Squares at the left: operators without counted FLOPs, at the height of their bytes per second`,
      label: `Achieved FLOP/s over FLOPs per byte. ${shown.slice(0, 5).map((row) => `${named(row)}: ${both(row, (side) => share(side[4])) || both(row, (side) => speed(side, 2, "flop"))}`).join("; ")}. The table below has all of them.`,
      height: 400,
      make: (colors) => {
        const marks = (index, word, hollow, color) => {
          const mine = shown.filter((row) => placed(row[index]));
          const points = mine.map((row) => at(row[index]));
          return {
            type: "scatter", mode: "markers", name: word, x: points.map(([x]) => x), y: points.map(([, y]) => y), hoverinfo: "text", text: mine.map((row) => hover(word, row, row[index])),
            marker: { symbol: mine.map((row) => (row[index][2] > 0 ? "circle" : "square") + (hollow ? "-open" : "")), color, size: mine.map((row) => 6 + 18 * Math.sqrt(row[index][0] / longest)), line: { color, width: 1.5 }, opacity: 0.85 },
          };
        };
        const roof = (name, bytes, flops, dash) => {
          const ridge = flops && bytes ? flops / bytes : 0;
          const points = bytes ? [[left, (left * bytes) / 1e9], ...(ridge > left && ridge < right ? [[ridge, flops / 1e9]] : []), [right, Math.min(right * bytes, flops || Infinity) / 1e9]] : [[left, flops / 1e9], [right, flops / 1e9]];
          return { type: "scatter", mode: "lines", name, x: points.map(([x]) => x), y: points.map(([, y]) => y), line: { color: colors.ink, width: 1, dash }, hoverinfo: "name", showlegend: false };
        };
        const joined = shown.filter((row) => placed(row[4]) && placed(row[5])).map((row) => [at(row[4]), at(row[5])]);
        const roofs = Object.entries(peaks);
        const data = [
          ...(memory ? roofs.map(([name, flops]) => roof(`${name}: ${quantity(flops, "flop")}/s, memory: ${quantity(memory, "B")}/s`, memory, flops, "solid")) : []),
          ...(memory && !roofs.length ? [roof(`memory: ${quantity(memory, "B")}/s`, memory, 0, "solid")] : []),
          ...(cache > memory ? [roof(`cache: ${quantity(cache, "B")}/s`, cache, fastest, "dot")] : []),
          { type: "scatter", mode: "lines", x: joined.flatMap(([from, to]) => [from[0], to[0], null]), y: joined.flatMap(([from, to]) => [from[1], to[1], null]), line: { color: colors.quiet, width: 1.5 }, hoverinfo: "skip", showlegend: false },
          marks(5, "current", false, colors.link),
          ...(compared ? [marks(4, "baseline", true, colors.ink)] : []),
        ];
        const log = Math.log10;
        const tags = [
          ...(memory ? roofs.map(([name, flops]) => ({ x: log(right), y: log(flops / 1e9), text: name, xanchor: "right" })) : []),
          // Above the slope, in its middle.
          ...[["memory", memory], ...(cache > memory ? [["cache", cache]] : [])].filter(([, rate]) => rate).map(([text, rate]) => {
            const middle = Math.sqrt(left * Math.min(right, fastest ? fastest / rate : right));
            return { x: log(middle), y: log((middle * rate) / 1e9), text, xanchor: "right" };
          }),
        ].map((tag) => ({ yanchor: "bottom", ...tag, showarrow: false, font: { color: colors.ink, size: 11 } }));
        return {
          data,
          layout: {
            ...base(colors), showlegend: compared, legend: { orientation: "h", y: 1.1 }, annotations: tags,
            xaxis: axis(colors, { type: "log", title: { text: "FLOPs per byte" }, range: [log(left), log(right)], dtick: 1 }),
            yaxis: axis(colors, { type: "log", title: { text: "Gflop/s" }, dtick: 1 }),
          },
        };
      },
    });
  };

  const fillModules = (place, found) => {
    for (const { call, modules, lines } of found.calls) {
      const named = call ? ` of ${call}` : "";
      if (modules.length) {
        const own = section(place, `Modules${named}`);
        const largest = Math.max(1, ...modules.map(([, before, now]) => Math.abs(now - before)));
        const levels = Math.max(...modules.map(([name]) => name.split(".").length));
        if (perfdl.hasCharts) chart(own, {
          title: "One observed step of baseline and current, by module",
          note: "width: sum of baseline and current time; text and color: change from the baseline. Click a module to zoom in",
          label: `Modules by time; the largest changes: ${modules.slice(0, 5).map(([name, before, now]) => `${name} ${quantity(now - before, "ns", true)}`).join(", ")}. The table below has all of them.`,
          height: Math.min(520, 60 + 44 * levels),
          make: (colors) => ({
            data: [{
              type: "icicle", tiling: { orientation: "v" }, branchvalues: "total", sort: true, pathbar: { visible: true, thickness: 20 },
              ids: modules.map(([name]) => name), labels: modules.map(([name]) => plain(shorten(name.split(".").at(-1), 40))),
              parents: modules.map(([name]) => name.split(".").slice(0, -1).join(".")),
              values: modules.map(([, before, now]) => before + now), text: modules.map(([, before, now]) => quantity(now - before, "ns", true)),
              textinfo: "label+text", hoverinfo: "text",
              hovertext: modules.map(([name, before, now]) => `${plain(shorten(name, 200))}<br>${quantity(before, "ns")} → ${quantity(now, "ns")} per step`),
              marker: {
                colors: modules.map(([, before, now]) => (now - before) / largest), cmin: -1, cmax: 1, line: { color: colors.card, width: 1 },
                colorscale: [[0, colors.good], [0.5, colors.soft], [1, colors.bad]],
              },
              insidetextfont: { color: modules.map(([, before, now]) => (Math.abs(now - before) / largest > 0.6 ? colors.card : colors.ink)) },
            }],
            layout: { ...base(colors), uniformtext: { minsize: 10, mode: "hide" }, margin: { l: 0, r: 0, t: 4, b: 4 } },
          }),
        });
        folded(own, `All modules (${modules.length})`, (details) => places(details, "Module", modules));
      }
      if (lines.length) folded(section(place, `Source lines${named}`), `All lines (${lines.length})`, (details) => places(details, "Line", lines));
    }
  };
  const places = (parent, heading, rows) => table(parent, `${heading}s in one observed step of baseline and current, including everything that they call`, [
    [heading, "text", ([name]) => [readable(name)]],
    ["Baseline", "number", ([, before]) => time(before)],
    ["Current", "number", ([, , now]) => time(now)],
    ["Difference", "number", ([, before, now]) => difference(now - before)],
    ["Change", "number", ([, before, now]) => ratio(before, now)],
  ], rows);

  const fillMemory = (place, found) => {
    for (const { call, memory } of found.calls) {
      const devices = [...new Set(Object.values(memory).flat().map(({ device }) => device))];
      for (const device of devices) {
        const sides = [["baseline", "base"], ["current", "new"]].map(([word, role]) => [word, (memory[role] ?? []).find((one) => one.device === device)]).filter(([, one]) => one);
        const own = section(place, `Memory on ${device}${call ? ` in ${call}` : ""}`);
        const [scale, word] = scaleOf(sides.flatMap(([, one]) => one.bytes), "B");
        const [ticks, unit] = scaleOf(sides.map(([, one]) => one.step_ns), "ns");
        if (perfdl.hasCharts) chart(own, {
          title: "Allocated memory over one observed step",
          note: sides.map(([side, one]) => `${side}: at most ${quantity(one.peak_bytes, "B")}`).join("; "),
          label: sides.map(([side, one]) => `${side}: at most ${quantity(one.peak_bytes, "B")}, ${quantity(one.peak_at_ns, "ns")} after the step began.`).join(" "),
          height: 220,
          make: (colors) => ({
            data: sides.map(([side, one]) => ({
              type: "scatter", mode: "lines", name: side, x: one.time_ns.map((ns) => ns / ticks), y: one.bytes.map((bytes) => bytes / scale),
              line: { shape: "hv", width: 1.5, color: side === "baseline" ? colors.quiet : colors.link, dash: side === "baseline" ? "dot" : "solid" },
              hovertemplate: `${side}: %{y:.4g} ${word} at %{x:.4g} ${unit}<extra></extra>`,
            })),
            layout: { ...base(colors), showlegend: true, legend: { orientation: "h", y: 1.15 }, xaxis: axis(colors, { title: { text: `${unit} since the step began` }, range: [0, Math.max(...sides.map(([, one]) => one.step_ns)) / ticks] }), yaxis: axis(colors, { title: { text: word }, rangemode: "tozero" }) },
          }),
        });
        for (const [side, one] of sides) if (one.alive.length) folded(own, `Allocated at the peak, ${side}`, (details) => table(details, `Memory allocated at the peak, ${side}`, [
          ["Operator", "text", ([operator]) => [operator]],
          ["Module", "text", ([, module]) => [module]],
          ["Bytes", "number", ([, , bytes]) => [quantity(bytes, "B"), bytes]],
          ["Blocks", "number", ([, , , count]) => (count === null ? ["", 0] : [quantity(count, "1"), count])],
        ], one.alive_more[0] ? [...one.alive, [`${one.alive_more[0]} more`, "", one.alive_more[1], null]] : one.alive));
      }
    }
  };

  // The peak by module, one drawing for each side: stronger color where it changed more.
  const fillPeaks = (place, found) => {
    for (const { call, device, sides, rows, more } of found.peaks) {
      const own = section(place, `The peak of ${device} by module${call ? `: ${call}` : ""}`);
      const both = [["baseline", sides.base], ["current", sides.new]].filter(([, side]) => side);
      const before = new Map((sides.base?.nodes ?? []).map(([id, , , bytes]) => [id, bytes]));
      const after = new Map(sides.new.nodes.map(([id, , , bytes]) => [id, bytes]));
      const change = (id) => (sides.base ? (after.get(id) ?? 0) - (before.get(id) ?? 0) : 0);
      // Parts have colors, and not what they are in: that has all of their changes.
      const isPart = (id) => id.includes(". ");
      const largest = Math.max(1, ...[...before.keys(), ...after.keys()].filter(isPart).map((id) => Math.abs(change(id))));
      for (const [word, side] of perfdl.hasCharts ? both : []) {
        const levels = Math.max(...side.nodes.map(([id]) => id.split(".").length));
        chart(own, {
          title: `Allocated at the peak, ${word}: ${quantity(side.peak_bytes, "B")}`,
          note: `width: bytes${sides.base && side === sides.new ? "; red: more than in the baseline, green: less" : ""}. Click a module to zoom in`,
          label: `${word}: ${Object.entries(side.categories).map(([name, bytes]) => `${name} ${quantity(bytes, "B")}`).join(", ")}. The table below has all rows.`,
          height: Math.min(520, 40 + 42 * levels),
          make: (colors) => ({
            data: [{
              type: "icicle", tiling: { orientation: "v" }, branchvalues: "total", sort: true, pathbar: { visible: true, thickness: 18 },
              ids: side.nodes.map(([id]) => id), parents: side.nodes.map(([, parent]) => parent),
              labels: side.nodes.map(([, , label, bytes]) => `${plain(shorten(label, 40))}<br>${quantity(bytes, "B")}`),
              values: side.nodes.map(([, , , bytes]) => bytes), textinfo: "label", hoverinfo: "text",
              hovertext: side.nodes.map(([id, , , bytes]) => `${plain(shorten(id, 200))}<br>${quantity(bytes, "B")}${sides.base ? `, ${quantity(change(id), "B", true)}` : ""}`),
              marker: {
                colors: side.nodes.map(([id]) => (side === sides.new && isPart(id) ? change(id) / largest : 0)), cmin: -1, cmax: 1, line: { color: colors.card, width: 1 },
                colorscale: [[0, colors.good], [0.5, colors.soft], [1, colors.bad]],
              },
              insidetextfont: { color: side.nodes.map(([id]) => (side === sides.new && isPart(id) && Math.abs(change(id) / largest) > 0.6 ? colors.card : colors.ink)) },
            }],
            layout: { ...base(colors), uniformtext: { minsize: 10, mode: "hide" }, margin: { l: 0, r: 0, t: 4, b: 4 } },
          }),
        });
      }
      const [scale, word] = scaleOf(both.map(([, side]) => side.peak_bytes), "B");
      const [ticks, unit] = scaleOf(both.map(([, side]) => side.step_ns), "ns");
      if (perfdl.hasCharts) chart(own, {
        title: "Allocated memory over one step with traced allocations",
        note: `this step is slower than others, because every allocation was traced; ${both.map(([side, one]) => `${side}: ${quantity(one.peak_bytes, "B")} at ${quantity(one.at_ns, "ns")}`).join("; ")}`,
        label: both.map(([side, one]) => `${side}: at most ${quantity(one.peak_bytes, "B")}, ${quantity(one.at_ns, "ns")} after the step began.`).join(" "),
        height: 220,
        make: (colors) => ({
          data: both.flatMap(([side, one]) => {
            const color = side === "baseline" ? colors.quiet : colors.link;
            return [
              { type: "scatter", mode: "lines", name: side, x: one.curve[0].map((ns) => ns / ticks), y: one.curve[1].map((bytes) => bytes / scale),
                line: { shape: "hv", width: 1.5, color, dash: side === "baseline" ? "dot" : "solid" }, hovertemplate: `${side}: %{y:.4g} ${word} at %{x:.4g} ${unit}<extra></extra>` },
              { type: "scatter", mode: "markers", showlegend: false, x: [one.at_ns / ticks], y: [one.peak_bytes / scale], marker: { size: 9, color, symbol: "diamond" }, hovertemplate: `${side}: the peak<extra></extra>` },
            ];
          }),
          layout: { ...base(colors), showlegend: true, legend: { orientation: "h", y: 1.15 }, xaxis: axis(colors, { title: { text: `${unit} since the step began` } }), yaxis: axis(colors, { title: { text: word }, rangemode: "tozero" }) },
        }),
      });
      folded(own, `All rows of the peak (${rows.length}${more ? ` of ${rows.length + more}` : ""})`, (details) => table(details, "Memory allocated at the peak, largest differences first", [
        ["Category", "text", ([category]) => [category]],
        ["Module", "text", ([, module]) => [module]],
        ["Allocated at", "text", ([, , line]) => [readable(line)]],
        ["Operator", "text", ([, , , operator]) => [operator]],
        ["Shape", "text", ([, , , , shape]) => [shape]],
        ["Baseline tensors", "number", (row) => [quantity(row[5], "1"), row[5]]],
        ["Current tensors", "number", (row) => [quantity(row[6], "1"), row[6]]],
        ["Baseline bytes", "number", (row) => [quantity(row[7], "B"), row[7]]],
        ["Current bytes", "number", (row) => [quantity(row[8], "B"), row[8]]],
        ["Difference", "number", (row) => [quantity(row[8] - row[7], "B", true), row[8] - row[7]]],
      ], rows));
    }
  };

  const fillHistory = (place, found) => {
    const own = place;
    for (const name of Object.keys(found.history.at(-1).step_time)) {
      const points = found.history.filter((one) => one.step_time[name]?.length);
      const labels = points.map(({ date, commit, source }, index) => `${index + 1}. ${date.slice(0, 10)} ${commit} ${source}`.replace(/\s+/g, " "));
      const [scale, word] = scaleOf(points.flatMap((one) => one.step_time[name]), "ns");
      if (perfdl.hasCharts) chart(own, {
        title: name,
        note: "one mark per process of each recording; the line joins the medians",
        label: points.map((one, index) => `${labels[index]}: median ${quantity(median(one.step_time[name]), "ns")}.`).join(" "),
        height: 260,
        make: (colors) => ({
          data: [
            { type: "scatter", mode: "lines", x: labels, y: points.map((one) => median(one.step_time[name]) / scale), line: { color: colors.link, width: 1.5 }, hoverinfo: "skip" },
            { type: "scatter", mode: "markers", x: points.flatMap((one, index) => one.step_time[name].map(() => labels[index])), y: points.flatMap((one) => one.step_time[name].map((value) => value / scale)),
              marker: { symbol: "circle-open", size: 7, color: colors.link }, hovertemplate: `%{x}: %{y:.4g} ${word}<extra></extra>` },
          ],
          layout: { ...base(colors), xaxis: axis(colors, { type: "category" }), yaxis: axis(colors, { title: { text: word } }) },
        }),
      });
    }
  };

  const FILL = { rows: fillRows, waterfall: fillWaterfall, roofline: fillRoofline, modules: fillModules, peaks: fillPeaks, memory: fillMemory, history: fillHistory };
  const fillPlace = (place, found) => {
    FILL[place.dataset.part]?.(place, found);
    if (place.dataset.part === "timeline" && perfdl.hasCharts) {
      const call = found.calls.find((one) => one.call === place.dataset.call);
      if (call?.trace) perfdl.timeline(place, call.trace);
    }
    place.dataset.filled = "true";
  };
  // A section is filled when it is opened: what is folded takes neither time nor height.
  const fillParts = (test, found) => {
    for (const place of test.querySelectorAll("[data-part]")) {
      const section = place.closest("details.section");
      if (!section || section.open) fillPlace(place, found);
      else section.addEventListener("toggle", () => fillPlace(place, found), { once: true });
    }
  };
  const filled = new Set();
  const fill = (test) => {
    if (filled.has(test) || !test.open) return;
    filled.add(test);
    const holder = document.getElementById(test.dataset.details);
    if (holder.dataset.packed === undefined) {
      fillParts(test, JSON.parse(holder.textContent));
      return;
    }
    // Of a large run the page holds a folded test compressed, with its part of the page.
    perfdl.gunzip(perfdl.bytes(holder.textContent)).then((text) => {
      const found = JSON.parse(text);
      test.insertAdjacentHTML("beforeend", found.html);
      perfdl.enhance(test);
      fillParts(test, found);
    });
  };
  const tests = [...document.querySelectorAll("details.test")];
  for (const test of tests) test.addEventListener("toggle", () => fill(test));
  perfdl.onPrint.unshift(() => tests.forEach(fill));
  tests.forEach(fill);
  perfdl.openTarget();
  document.documentElement.dataset.ready = "true";
})();
