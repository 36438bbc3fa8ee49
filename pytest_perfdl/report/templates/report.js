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
  const section = (place, title) => {
    const made = element("section", {}, element("h3", { textContent: title }));
    place.append(made);
    return made;
  };
  const difference = (value) => [quantity(value, "ns", true), value ?? NaN];
  const time = (value) => [quantity(value, "ns"), value ?? NaN];
  const ratio = (from, to) => (from && to !== null ? [percent(to / from - 1), to / from - 1] : ["", NaN]);

  const EFFECTS = [["more often", "less often"], ["longer each", "shorter each"], ["another mix", "another mix"], ["less of it hidden", "more of it hidden"]];
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
    folded(place, `All operators and kernels (${found.rows.length.toLocaleString("en")})`, (details) => table(
      details,
      "Every operator, kernel and class of idle time: means of a profiled step over the repeats",
      [
        ["Name", "text", (row) => [(names[row[0]] ? `${names[row[0]]}: ` : "") + names[row[2]]]],
        ["Kind", "text", (row) => [names[row[1]]]],
        ["Baseline count", "number", (row) => count(row, 3)],
        ["Count", "number", (row) => count(row, 4)],
        ["Baseline time", "number", (row) => time(row[5])],
        ["Time", "number", (row) => time(row[6])],
        ["Difference", "number", (row) => (found.compared ? difference((row[6] ?? 0) - (row[5] ?? 0)) : ["", NaN])],
        ["Change", "number", (row) => ratio(row[5], row[6])],
        ["Because", "text", (row) => [row[9] ? because(row[9]) : ""]],
        ["Matched by", "text", (row) => [found.compared ? (row[7] === undefined ? "" : names[row[7]]) || (row[5] === null ? "new" : row[6] === null ? "gone" : "") : ""]],
        ["Confidence", "number", (row) => [row[8] === undefined || row[8] === null ? "" : `${Math.round(row[8] * 100)}%`, row[8] ?? NaN]],
      ],
      found.rows,
    ));
  };

  const said = (side, values, unit) => (values.length
    ? `${side}: median ${quantity(median(values), unit)}, ${quantity(Math.min(...values), unit)} to ${quantity(Math.max(...values), unit)} in ${values.length} repeats. `
    : "");
  const fillRepeats = (place, found) => {
    for (const metric of found.metrics) {
      const { name, unit, base: before, new: now, middle, effect, ci95, limit } = metric;
      const interval = middle && effect !== null && ci95 ? [effect, ...ci95].map((share) => middle * (1 + share)) : null;
      const [scale, word] = scaleOf([...before, ...now], unit);
      const rows = [["this run", now, "diamond"], ["baseline", before, "circle-open"]].filter(([, values]) => values.length);
      chart(place, {
        title: name,
        note: `one mark for each repeat; box: quartiles and median${interval ? "; interval: the baseline changed by the 95% interval of the change" : ""}`,
        label: `${name}. ${said("Baseline", before, unit)}${said("This run", now, unit)}${interval ? `Change ${percent(effect)}, 95% interval ${percent(ci95[0])} to ${percent(ci95[1])}.` : ""}`,
        height: 60 + 34 * (rows.length + (interval ? 1 : 0)),
        make: (colors) => {
          const data = rows.map(([side, values, symbol]) => ({
            type: "box", orientation: "h", name: side, x: values.map((value) => value / scale), y: values.map(() => side),
            boxpoints: "all", jitter: 0.6, pointpos: 0, width: 0.6, hoveron: "points", hoverinfo: "text",
            text: values.map((value, index) => `${side}, repeat ${index + 1}: ${quantity(value, unit)}`),
            line: { color: side === "baseline" ? colors.quiet : colors.link, width: 1 }, fillcolor: "transparent",
            marker: { symbol, size: 8, color: side === "baseline" ? colors.quiet : colors.link },
          }));
          if (interval) {
            const [at, low, high] = interval.map((value) => value / scale);
            data.unshift({
              type: "scatter", mode: "markers", x: [at], y: ["interval"], hoverinfo: "text",
              text: [`change ${percent(effect)}, 95% interval ${percent(ci95[0])} to ${percent(ci95[1])}`],
              error_x: { type: "data", symmetric: false, array: [high - at], arrayminus: [at - low], color: colors.ink, thickness: 2, width: 5 },
              marker: { symbol: "line-ns-open", size: 12, color: colors.ink },
            });
          }
          return {
            data,
            layout: {
              ...base(colors),
              xaxis: axis(colors, { title: { text: plain(word) }, zeroline: false }),
              yaxis: axis(colors, { showgrid: false }),
              shapes: limit === null ? [] : [{ type: "line", x0: limit / scale, x1: limit / scale, yref: "paper", y0: 0, y1: 1, line: { color: colors.bad, dash: "dash", width: 1 } }],
              annotations: limit === null ? [] : [{ x: limit / scale, yref: "paper", y: 1, text: "limit", showarrow: false, yanchor: "bottom", font: { color: colors.bad } }],
              margin: { ...base(colors).margin, t: 20 },
            },
          };
        },
      });
    }
  };

  const fillWaterfall = (place, found) => {
    for (const { call, base_ns: before, new_ns: now, timed, bars } of found.accounts) {
      if (!bars.length) continue;
      const own = section(place, `From the baseline's step to this run's${call ? `: ${call}` : ""}`);
      let at = before;
      const ends = [before, ...bars.map(([, ns]) => (at += ns)), now];
      const [low, high] = [Math.min(...ends), Math.max(...ends)];
      const room = (high - low) * (innerWidth < 700 ? 0.8 : 0.35) || high * 0.1;
      const from = low - room > high * 0.25 ? low - room : 0;
      const [scale, word] = scaleOf([high], "ns");
      const label = (name) => plain(shorten(name, innerWidth < 700 ? 18 : 44));
      const ids = ["baseline", ...bars.map(([name], index) => `${index} ${name}`), "this run"];
      const height = 70 + 26 * ids.length;
      if (perfdl.hasCharts) chart(own, {
        title: timed ? "Mean step, as timed without the profiler" : "Mean profiled step",
        note: `means of ${found.repeats[0]} and ${found.repeats[1]} repeats; bars add up exactly${from ? "; the axis does not start at zero" : ""}`,
        label: `From ${quantity(before, "ns")} to ${quantity(now, "ns")}: ${bars.map(([name, ns]) => `${name} ${quantity(ns, "ns", true)}`).join(", ")}.`,
        height,
        make: (colors) => ({
          data: [{
            type: "waterfall", orientation: "h", y: ids, x: [before, ...bars.map(([, ns]) => ns), now].map((value) => value / scale),
            measure: ["absolute", ...bars.map(() => "relative"), "total"],
            text: [quantity(before, "ns"), ...bars.map(([, ns]) => quantity(ns, "ns", true)), quantity(now, "ns")],
            textposition: "outside", cliponaxis: false, hoverinfo: "text", textfont: { color: colors.ink },
            hovertext: [`baseline: ${quantity(before, "ns")}`, ...bars.map(([name, ns]) => `${plain(shorten(name, 200))}<br>${quantity(ns, "ns", true)} a step`), `this run: ${quantity(now, "ns")}`],
            increasing: { marker: { color: colors.bad } }, decreasing: { marker: { color: colors.good } }, totals: { marker: { color: colors.quiet } },
            connector: { line: { color: colors.line } },
          }],
          layout: {
            ...base(colors),
            xaxis: axis(colors, { title: { text: word }, range: [from / scale, (high + room) / scale], zeroline: false }),
            yaxis: axis(colors, { autorange: "reversed", showgrid: false, tickvals: ids, ticktext: ["baseline", ...bars.map(([name]) => label(name)), "this run"] }),
          },
        }),
      });
      folded(own, "The same as a table", (details) => table(details, "What the step gained and lost", [
        ["Part", "text", ([name]) => [name]],
        ["Change a step", "number", ([, ns]) => difference(ns)],
        ["Of the whole change", "number", ([, ns]) => (now === before ? ["", NaN] : [`${((ns / (now - before)) * 100).toFixed(1)}%`, ns / (now - before)])],
      ], bars));
    }
  };

  // A side of an operator: [nanoseconds, calls, FLOPs, bytes, share of its roofline, what bounds it], of a mean step.
  const rate = (side, at) => (side && side[at] && side[0] ? (side[at] * 1e9) / side[0] : NaN);
  const rateText = (value, unit) => (Number.isFinite(value) ? `${quantity(value, unit)}/s` : "");
  const share = (value) => (value === null || value === undefined ? "" : `${(value * 100).toFixed(1)}%`);
  const shapesOf = (text) => (text ? text.replace(/[\[\]"\s]+/g, (gap) => (gap.includes("[") && gap.length > 1 ? " " : gap)) : "");
  const fillRoofline = (place, found) => {
    const { rows, flops_per_s: roofs, bandwidths, left_out: leftOut } = found.roofline;
    if (!rows.length) return;
    names ??= parsed("perfdl-names");
    const own = section(place, "How well operators use the machine");
    const named = (row) => (names[row[0]] ? `${names[row[0]]}: ` : "") + (names[row[1]] || "no operator known");
    const both = rows.some((row) => row[4]);
    const placed = (side) => side && side[0] > 0 && side[2] > 0 && side[3] > 0;
    const points = rows.filter((row) => placed(row[4]) || placed(row[5]));
    if (perfdl.hasCharts && points.length) {
      const at = (side) => [side[2] / side[3], rate(side, 2)];
      const whole = Math.max(...points.flatMap((row) => [row[4], row[5]]).filter(Boolean).map((side) => side[0]));
      const size = (side) => 6 + 18 * Math.sqrt(side[0] / whole);
      const spots = points.flatMap((row) => [row[4], row[5]]).filter(placed).map(at);
      const [left, right] = [Math.min(...spots.map(([x]) => x)) / 3, Math.max(...spots.map(([x]) => x)) * 3];
      const fastest = Math.max(0, ...Object.values(roofs));
      const memory = bandwidths.length ? [["memory", bandwidths.at(-1)[1]], ["cache", Math.max(...bandwidths.map(([, speed]) => speed))]] : [];
      const hover = (word, row, side) => [`${word}: ${plain(named(row))}`, plain(shapesOf(names[row[2]])), names[row[3]], `${quantity(side[0], "ns")} a step, ${rateText(rate(side, 2), "flop")}, ${rateText(rate(side, 3), "B")}`, side[4] === null ? "" : `${share(side[4])} of its roofline, ${side[5]}-bound`].filter(Boolean).join("<br>");
      chart(own, {
        title: "Roofline",
        note: `one mark for each operator and its shapes, larger for more time${both ? "; open: baseline, filled: this run, joined where both are known" : ""}. Upper left of a roof no operator can be`,
        label: `Achieved FLOP/s over FLOPs a byte. ${points.slice(0, 5).map((row) => `${named(row)}: ${[row[4], row[5]].filter(placed).map((side) => rateText(rate(side, 2), "flop")).join(" to ")}`).join("; ")}. The table below has all of them.`,
        height: 380,
        make: (colors) => {
          const marks = (index, word, symbol, color) => {
            const mine = points.filter((row) => placed(row[index]));
            return {
              type: "scatter", mode: "markers", name: word, x: mine.map((row) => at(row[index])[0]), y: mine.map((row) => at(row[index])[1] / 1e9),
              marker: { symbol, color, size: mine.map((row) => size(row[index])), line: { color, width: 1.5 }, opacity: 0.85 },
              hoverinfo: "text", text: mine.map((row) => hover(word, row, row[index])),
            };
          };
          const joined = points.filter((row) => placed(row[4]) && placed(row[5]));
          const line = (name, x, y, dash) => ({ type: "scatter", mode: "lines", name, x, y, line: { color: colors.ink, width: 1, dash }, hoverinfo: "name", showlegend: false });
          const data = [
            ...memory.map(([word, speed]) => line(`${word}: ${rateText(speed, "B")}`, fastest ? [left, Math.min(right, fastest / speed)] : [left, right], (fastest ? [left, Math.min(right, fastest / speed)] : [left, right]).map((x) => (x * speed) / 1e9), word === "cache" ? "dot" : "solid")),
            ...Object.entries(roofs).map(([name, peak]) => line(`${name}: ${rateText(peak, "flop")}`, [memory.length ? Math.max(left, peak / memory.at(-1)[1]) : left, right], [peak / 1e9, peak / 1e9], "solid")),
            { type: "scatter", mode: "lines", x: joined.flatMap((row) => [at(row[4])[0], at(row[5])[0], null]), y: joined.flatMap((row) => [at(row[4])[1] / 1e9, at(row[5])[1] / 1e9, null]), line: { color: colors.quiet, width: 1 }, hoverinfo: "skip", showlegend: false },
            ...(both ? [marks(4, "baseline", "circle-open", colors.quiet)] : []),
            marks(5, "this run", "circle", colors.link),
          ];
          const tags = [
            ...Object.entries(roofs).map(([name, peak]) => ({ x: Math.log10(right), y: Math.log10(peak / 1e9), text: name, xanchor: "right" })),
            ...memory.map(([word, speed]) => ({ x: Math.log10(left), y: Math.log10((left * speed) / 1e9), text: word, xanchor: "left" })),
          ].map((tag) => ({ ...tag, showarrow: false, yanchor: "bottom", font: { color: colors.ink, size: 11 } }));
          return {
            data,
            layout: { ...base(colors), showlegend: both, legend: { orientation: "h", y: 1.1 }, annotations: tags, xaxis: axis(colors, { type: "log", title: { text: "FLOPs a byte" } }), yaxis: axis(colors, { type: "log", title: { text: "Gflop/s" } }) },
          };
        },
      });
    }
    const sided = (heading, kind, make) => (both ? [[`Baseline ${heading.toLowerCase()}`, 4], [heading, 5]] : [[heading, 5]]).map(([text, side]) => [text, kind, (row) => make(row[side])]);
    table(own, "What operators of the profiled steps had to do, and how long they took: means of a step", [
      ["Operator", "text", (row) => [named(row)]],
      ["Shapes", "text", (row) => [shapesOf(names[row[2]])]],
      ["Type", "text", (row) => [names[row[3]]]],
      ...sided("Time", "number", (side) => time(side ? side[0] : null)),
      ...sided("FLOP/s", "number", (side) => [rateText(rate(side, 2), "flop"), rate(side, 2)]),
      ...sided("Bytes/s", "number", (side) => [rateText(rate(side, 3), "B"), rate(side, 3)]),
      ...sided("Of its roofline", "number", (side) => [share(side?.[4]), side?.[4] ?? NaN]),
      ...sided("Bound by", "text", (side) => [side?.[5] ?? ""]),
    ], rows, 12);
    if (leftOut) own.append(element("p", { className: "note", textContent: `${leftOut} more with less time are left out.` }));
  };

  const fillModules = (place, found) => {
    for (const { call, modules, lines } of found.calls) {
      const named = call ? ` of ${call}` : "";
      if (modules.length) {
        const own = section(place, `Modules${named}`);
        const largest = Math.max(1, ...modules.map(([, before, now]) => Math.abs(now - before)));
        const levels = Math.max(...modules.map(([name]) => name.split(".").length));
        if (perfdl.hasCharts) chart(own, {
          title: "The representative steps by module",
          note: "width: time on both sides together; text and color: change from the baseline. Click to look into a module",
          label: `Modules by time; the largest changes: ${modules.slice(0, 5).map(([name, before, now]) => `${name} ${quantity(now - before, "ns", true)}`).join(", ")}. The table below has all of them.`,
          height: Math.min(520, 60 + 44 * levels),
          make: (colors) => ({
            data: [{
              type: "icicle", tiling: { orientation: "v" }, branchvalues: "total", sort: true, pathbar: { visible: true, thickness: 20 },
              ids: modules.map(([name]) => name), labels: modules.map(([name]) => plain(shorten(name.split(".").at(-1), 40))),
              parents: modules.map(([name]) => name.split(".").slice(0, -1).join(".")),
              values: modules.map(([, before, now]) => before + now), text: modules.map(([, before, now]) => quantity(now - before, "ns", true)),
              textinfo: "label+text", hoverinfo: "text",
              hovertext: modules.map(([name, before, now]) => `${plain(shorten(name, 200))}<br>${quantity(before, "ns")} → ${quantity(now, "ns")} a step`),
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
  const places = (parent, heading, rows) => table(parent, `${heading}s of the representative steps, with what is inside them`, [
    [heading, "text", ([name]) => [name]],
    ["Baseline", "number", ([, before]) => time(before)],
    ["This run", "number", ([, , now]) => time(now)],
    ["Difference", "number", ([, before, now]) => difference(now - before)],
    ["Change", "number", ([, before, now]) => ratio(before, now)],
  ], rows);

  const fillMemory = (place, found) => {
    for (const { call, memory } of found.calls) {
      const devices = [...new Set(Object.values(memory).flat().map(({ device }) => device))];
      for (const device of devices) {
        const sides = [["baseline", "base"], ["this run", "new"]].map(([word, role]) => [word, (memory[role] ?? []).find((one) => one.device === device)]).filter(([, one]) => one);
        const own = section(place, `Memory of ${device}${call ? ` in ${call}` : ""}`);
        const [scale, word] = scaleOf(sides.flatMap(([, one]) => one.bytes), "B");
        const [ticks, unit] = scaleOf(sides.map(([, one]) => one.step_ns), "ns");
        if (perfdl.hasCharts) chart(own, {
          title: "Allocated over the step",
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
        for (const [side, one] of sides) if (one.alive.length) folded(own, `Alive at the peak, ${side}`, (details) => table(details, `What was allocated at the peak, ${side}`, [
          ["Operator", "text", ([operator]) => [operator]],
          ["Module", "text", ([, module]) => [module]],
          ["Bytes", "number", ([, , bytes]) => [quantity(bytes, "B"), bytes]],
          ["Blocks", "number", ([, , , count]) => (count === null ? ["", 0] : [quantity(count, "1"), count])],
        ], one.alive_more[0] ? [...one.alive, [`${one.alive_more[0]} more`, "", one.alive_more[1], null]] : one.alive));
      }
    }
  };

  const fillHistory = (place, found) => {
    if (!found.history.length) return;
    const own = section(place, "History");
    for (const name of Object.keys(found.history.at(-1).step_time)) {
      const points = found.history.filter((one) => one.step_time[name]?.length);
      const labels = points.map(({ date, commit, source }, index) => `${index + 1}. ${date.slice(0, 10)} ${commit} ${source}`.replace(/\s+/g, " "));
      const [scale, word] = scaleOf(points.flatMap((one) => one.step_time[name]), "ns");
      if (perfdl.hasCharts) chart(own, {
        title: name,
        note: "one mark for each repeat, by occasion; the line joins medians",
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

  const FILL = { rows: fillRows, waterfall: fillWaterfall, roofline: fillRoofline, modules: fillModules, memory: fillMemory, history: fillHistory };
  const fillParts = (test, found) => {
    if (perfdl.hasCharts) FILL.repeats = fillRepeats;
    for (const place of test.querySelectorAll("[data-part]")) {
      FILL[place.dataset.part]?.(place, found);
      if (place.dataset.part === "timeline" && perfdl.hasCharts) {
        const call = found.calls.find((one) => one.call === place.dataset.call);
        if (call?.trace) perfdl.timeline(place, call.trace);
      }
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
  document.documentElement.dataset.ready = "true";
})();
