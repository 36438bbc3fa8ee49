"use strict";
(() => {
  const PERFETTO = "https://ui.perfetto.dev";
  const PING_EVERY_MS = 50;
  const GIVE_UP_MS = 30000;
  const root = document.documentElement;
  const status = document.getElementById("status");
  let fade = 0;
  root.classList.add("js");

  const say = (text) => {
    status.textContent = text;
    clearTimeout(fade);
    fade = setTimeout(() => { status.textContent = ""; }, 8000);
  };

  // Tables sort on the numbers behind the text, never on the text of a number; empty cells stay last.
  const sortBy = (table, heading, index) => {
    const numeric = heading.dataset.sort === "number";
    const was = heading.getAttribute("aria-sort");
    const order = was ? (was === "descending" ? "ascending" : "descending") : numeric ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[index];
      const value = cell.dataset.value ?? cell.textContent.trim();
      return { row, value: numeric ? (value === "" ? NaN : Number(value)) : value };
    });
    keyed.sort((a, b) => {
      if (!numeric) return sign * a.value.localeCompare(b.value);
      if (Number.isNaN(a.value) || Number.isNaN(b.value)) return Number.isNaN(a.value) - Number.isNaN(b.value);
      return sign * (a.value - b.value);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    body.append(...keyed.map((entry) => entry.row));
    fold(table);
  };

  // A long table shows its first rows until asked for all; a filter looks at all of them.
  const fold = (table) => {
    const most = table.dataset.open === "true" ? Infinity : Number(table.dataset.show || Infinity);
    const words = (table.dataset.words || "").toLowerCase().split(/\s+/).filter(Boolean);
    let matching = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const match = words.every((word) => text.includes(word));
      matching += match;
      row.hidden = !match || (!words.length && matching > most);
    }
    const more = table.parentElement.parentElement.querySelector(`[data-more="${table.id}"]`);
    if (more) {
      more.hidden = words.length > 0 || matching <= most;
      more.textContent = `Show all ${matching} rows`;
    }
  };

  // Whatever comes into the page later (a test that was folded) is made to work the same way.
  const enhance = (root) => {
    for (const table of root.querySelectorAll("table[data-sortable]")) {
      [...table.tHead.rows[0].cells].forEach((heading, index) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = heading.textContent;
        button.addEventListener("click", () => sortBy(table, heading, index));
        heading.replaceChildren(button);
      });
      if (table.dataset.show && table.tBodies[0].rows.length > Number(table.dataset.show)) {
        const more = document.createElement("button");
        more.type = "button";
        more.className = "more";
        more.dataset.more = table.id;
        more.addEventListener("click", () => { table.dataset.open = "true"; fold(table); });
        table.parentElement.after(more);
      }
      fold(table);
    }
    for (const input of root.querySelectorAll("input[data-filter]")) {
      const table = document.getElementById(input.dataset.filter);
      input.addEventListener("input", () => { table.dataset.words = input.value; fold(table); });
    }
    for (const button of root.querySelectorAll("button[data-copy]")) {
      button.addEventListener("click", async () => {
        say((await copy(button.dataset.copy)) ? "Copied the command." : "The browser refused to copy: select the command instead.");
      });
    }
    for (const button of root.querySelectorAll("button[data-link]")) {
      button.addEventListener("click", async () => {
        const url = `${location.href.split("#")[0]}#${button.dataset.link}`;
        say((await copy(url)) ? "Copied the link to this test." : `The browser refused to copy: ${url}`);
      });
    }
    for (const button of root.querySelectorAll("button[data-perfetto]")) {
      button.addEventListener("click", () => openInPerfetto(button.dataset.perfetto, button.dataset.title, button.dataset.selected));
    }
    // The page may have been moved away from its traces folder: what it holds, it gives out itself.
    for (const link of root.querySelectorAll("a[data-embedded]")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        const url = URL.createObjectURL(new Blob([embedded(link.dataset.embedded)], { type: "application/gzip" }));
        const anchor = document.createElement("a");
        anchor.href = url;
        anchor.download = link.dataset.embedded;
        anchor.click();
        setTimeout(() => URL.revokeObjectURL(url), 60000);
      });
    }
  };

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "offscreen";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  };
  const embedded = (name) => {
    const holder = [...document.querySelectorAll("script[data-trace-file]")].find((script) => script.dataset.traceFile === name);
    return Uint8Array.from(atob(holder.textContent), (char) => char.charCodeAt(0)).buffer;
  };

  // Perfetto answers PONG to PING once it can take a trace; the trace goes from window to window. The channel stays
  // open for the range that it should show: it takes that when the trace is loaded. The slice to select is in the
  // address, as its documentation on deep links says.
  const openInPerfetto = async (name, title, selected) => {
    const child = window.open(selected ? `${PERFETTO}/?${selected}` : PERFETTO);
    if (!child) {
      say("The browser blocked the window. Download the trace and drop it on ui.perfetto.dev.");
      return;
    }
    const range = perfdl.worstRange ? perfdl.worstRange(name) : null;
    const stop = () => {
      clearInterval(timer);
      clearTimeout(limit);
      window.removeEventListener("message", hear);
    };
    const hear = async (event) => {
      if (event.source !== child || event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      const buffer = embedded(name);
      child.postMessage({ perfetto: { buffer, title, fileName: name, keepApiOpen: true } }, PERFETTO, [buffer]);
      say("Sent the trace to Perfetto.");
      const shown = await range;
      if (shown) child.postMessage({ perfetto: { timeStart: shown[0], timeEnd: shown[1], viewPercentage: 0.5 } }, PERFETTO);
    };
    window.addEventListener("message", hear);
    const timer = setInterval(() => child.postMessage("PING", PERFETTO), PING_EVERY_MS);
    const limit = setTimeout(() => {
      stop();
      say("Perfetto did not answer. Download the trace and drop it on ui.perfetto.dev.");
    }, GIVE_UP_MS);
    say("Waiting for Perfetto.");
  };

  const perfdl = (window.perfdl = { say, enhance, embedded, onPrint: [] });
  enhance(document);

  const openTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) {
      target.open = true;
      target.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", openTarget);
  openTarget();

  // Paper shows what the reader has opened, and of a short report everything.
  let closed = [];
  window.addEventListener("beforeprint", () => {
    const folded = [...document.querySelectorAll("details.test:not([open])")];
    closed = folded.length > 60 ? [] : folded;
    for (const details of closed) details.open = true;
    for (const prepare of perfdl.onPrint) prepare();
  });
  window.addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
})();
