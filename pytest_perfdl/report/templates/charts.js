(() => {
  // Charts: plotly.js is unpacked when the first one comes into view, and draws what `make(theme)` describes.
  const perfdl = window.perfdl;
  const holder = document.getElementById("perfdl-charts");
  const STEPS = {
    ns: [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]],
    B: [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]],
    flop: [[1e12, "Tflop"], [1e9, "Gflop"], [1e6, "Mflop"], [1e3, "kflop"]],
  };

  const digits = (value) => {
    const rounded = Number(value.toPrecision(4));
    return rounded === 0 || rounded >= 1000 ? value.toFixed(0) : value.toFixed(Math.max(0, 3 - Math.floor(Math.log10(rounded))));
  };
  // As the tables of the page say it: four significant digits and the unit that fits.
  const quantity = (value, unit, signed = false) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "";
    const sign = signed && value > 0 ? "+" : value < 0 ? "-" : "";
    const size = Math.abs(value);
    for (const [scale, name] of STEPS[unit] ?? []) {
      if (Number((size / scale).toPrecision(4)) >= 1) return `${sign}${digits(size / scale)} ${name}`;
    }
    if (STEPS[unit]) return `${sign}${size.toFixed(0)} ${unit}`;
    const number = Number.isInteger(size) && size < 1e9 ? String(size) : digits(size);
    return unit === "1" || unit === "" ? sign + number : `${sign}${number} ${unit}`;
  };
  const percent = (ratio) => {
    if (ratio === null || !Number.isFinite(ratio)) return "";
    const value = ratio * 100;
    return `${value > 0 ? "+" : ""}${value.toFixed(Math.abs(value) >= 99.95 ? 0 : 1)}%`;
  };
  // One scale and unit for a whole axis.
  const scaleOf = (values, unit) => {
    const largest = Math.max(0, ...values.map(Math.abs));
    return (STEPS[unit] ?? []).find(([scale]) => largest >= scale) ?? [1, unit === "1" ? "" : unit];
  };
  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  };
  // The library reads tags and entities in labels: names are text.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const shorten = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.ceil(most * 0.6))}…${text.slice(-Math.floor(most * 0.35))}`);

  const element = (name, properties = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key in made && key !== "role") made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };

  const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const gunzip = (bytes) => new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  let library = null;
  const load = () => {
    library ??= gunzip(bytes(holder.textContent)).then((text) => {
      document.head.append(element("script", { textContent: text }));
      return window.Plotly;
    });
    return library;
  };

  // Paper is white, whatever the screen was when the page was printed.
  const PAPER_COLORS = { paper: "#ffffff", card: "#ffffff", ink: "#000000", quiet: "#444444", line: "#bbbbbb", soft: "#f2f2f2", bad: "#b3261e", good: "#1c6b3a", warn: "#805300", link: "#1c58b0" };
  let printing = false;
  const theme = () => {
    if (printing) return PAPER_COLORS;
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(Object.keys(PAPER_COLORS).map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  };
  const base = (colors) => ({
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colors.quiet },
    margin: { l: 8, r: 16, t: 8, b: 36 },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: colors.card, bordercolor: colors.line, font: { color: colors.ink }, align: "left" },
    dragmode: false,
  });
  const axis = (colors, more) => ({ gridcolor: colors.line, zerolinecolor: colors.line, linecolor: colors.line, automargin: true, fixedrange: true, ...more });

  const charts = new Map();
  const draw = (place) => {
    const chart = charts.get(place);
    const { data, layout } = chart.make(theme());
    window.Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
    if (!chart.drawn) {
      chart.drawn = true;
      chart.after?.(place);
    }
  };
  // What is in view is drawn first, and then what is open, also where nobody scrolls: a capture of the whole page has it.
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting || charts.get(target).drawn) continue;
      seen.unobserve(target);
      load().then(() => draw(target));
    }
  }, { rootMargin: "300px" });
  const isShown = (place) => place.checkVisibility?.() ?? place.offsetParent !== null;
  const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  let idle = false;
  const drawRest = () => {
    if (idle) return;
    idle = true;
    const next = () => whenIdle(() => {
      const place = [...charts.keys()].find((one) => !charts.get(one).drawn && isShown(one));
      if (!place) { idle = false; return; }
      load().then(() => { if (!charts.get(place).drawn) draw(place); next(); });
    });
    next();
  };

  // A drawing with what it says in words: `label` is all that a screen reader gets of it.
  const chart = (parent, { title, note, label, height, make, after }) => {
    const place = element("div", { className: "chart", role: "img", "aria-label": label });
    place.style.height = `${height}px`;
    const figure = element("figure", { className: "chart" }, element("figcaption", {}, element("strong", { textContent: title }), note ? ` ${note}` : ""), place);
    parent.append(figure);
    charts.set(place, { make, after, drawn: false });
    seen.observe(place);
    drawRest();
    return place;
  };
  const onTheme = [() => { for (const [place, one] of charts) if (one.drawn) draw(place); }];
  const retheme = () => { for (const one of onTheme) one(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
  // On paper a chart is as wide as the sheet, whatever the window was. What was not drawn yet is drawn before the
  // sheet is laid out, for which the library has to be there: it is loaded as soon as there is a chart.
  const PAPER = 660;
  perfdl.onPrint.push(() => {
    printing = true;
    if (window.Plotly) for (const place of charts.keys()) if (!charts.get(place).drawn && isShown(place)) draw(place);
    retheme();
    for (const [place, one] of charts) if (one.drawn && place.clientWidth > PAPER) window.Plotly.relayout(place, { width: PAPER });
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    retheme();
    for (const [place, one] of charts) if (one.drawn) window.Plotly.relayout(place, { width: null, autosize: true });
  });

  Object.assign(perfdl, { axis, base, bytes, chart, element, gunzip, hasCharts: Boolean(holder), median, onTheme, percent, plain, quantity, scaleOf, shorten, theme });
})();
