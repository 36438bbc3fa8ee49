"use strict";
(() => {
  const PERFETTO = "https://ui.perfetto.dev";
  const PING_EVERY_MS = 50;
  const NO_ANSWER_MS = 6000;
  const GIVE_UP_MS = 60000;
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
        say((await copy(button.dataset.copy)) ? "Copied the command." : "The browser did not allow copying. Select the command and copy it.");
      });
    }
    for (const button of root.querySelectorAll("button[data-link]")) {
      button.addEventListener("click", async () => {
        const url = `${location.href.split("#")[0]}#${button.dataset.link}`;
        say((await copy(url)) ? "Copied the link to this test." : `The browser did not allow copying. The link is ${url}`);
      });
    }
    for (const button of root.querySelectorAll("button[data-perfetto]")) {
      button.addEventListener("click", () => openInPerfetto(button));
    }
    // The page may have been moved away from its traces folder: what it holds, it gives out itself.
    for (const link of root.querySelectorAll("a[data-embedded]")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        download(link.dataset.embedded);
      });
    }
    for (const button of root.querySelectorAll("button[data-open]")) {
      button.addEventListener("click", () => {
        const section = document.getElementById(button.dataset.open);
        section.open = true;
        section.scrollIntoView();
        section.querySelector("summary").focus({ preventScroll: true });
      });
    }
  };
  const download = (name) => {
    const url = URL.createObjectURL(new Blob([embedded(name)], { type: "application/gzip" }));
    const anchor = document.createElement("a");
    anchor.href = url;
    anchor.download = name;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
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
  // open for the range that it should show: it takes that when the trace is loaded. The slice to select is in the address,
  // as its documentation on deep links says. Whether the site was reached at all
  // cannot be seen from here: no answer says so.
  const openInPerfetto = async (button) => {
    const { perfetto: name, title, selected } = button.dataset;
    const alert = button.closest(".body")?.querySelector("[data-alert]");
    const warn = (text) => {
      if (!alert) { say(text); return; }
      const link = document.createElement("a");
      link.href = `traces/${name}`;
      link.textContent = "Download the trace";
      link.addEventListener("click", (event) => { event.preventDefault(); download(name); });
      const command = document.createElement("code");
      command.textContent = `perfdl view traces/${name}`;
      alert.replaceChildren(`${text} `, link, " and open it there later, or serve it from this folder: ", command);
      alert.hidden = false;
      alert.scrollIntoView({ block: "nearest" });
    };
    const child = window.open(selected ? `${PERFETTO}/?${selected}` : PERFETTO);
    if (!child) {
      warn("The browser blocked the new window with ui.perfetto.dev.");
      return;
    }
    if (alert) alert.hidden = true;
    const range = perfdl.worstRange ? perfdl.worstRange(name) : null;
    const stop = () => {
      clearInterval(timer);
      clearTimeout(late);
      clearTimeout(limit);
      window.removeEventListener("message", hear);
    };
    const hear = async (event) => {
      if (event.source !== child || event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      if (alert) alert.hidden = true;
      const buffer = embedded(name);
      child.postMessage({ perfetto: { buffer, title, fileName: name, keepApiOpen: true } }, PERFETTO, [buffer]);
      say("Sent the trace to Perfetto.");
      const shown = await range;
      if (shown) child.postMessage({ perfetto: { timeStart: shown[0], timeEnd: shown[1], viewPercentage: 0.5 } }, PERFETTO);
    };
    window.addEventListener("message", hear);
    const timer = setInterval(() => child.postMessage("PING", PERFETTO), PING_EVERY_MS);
    const late = setTimeout(() => warn(`ui.perfetto.dev cannot be reached: no answer within ${NO_ANSWER_MS / 1000} s.`), NO_ANSWER_MS);
    const limit = setTimeout(stop, GIVE_UP_MS);
    say("Waiting for Perfetto.");
  };

  const perfdl = (window.perfdl = { say, enhance, embedded, onPrint: [] });
  enhance(document);

  // Chips and search show the tests that match, both as cards and in the table; the address keeps what was asked for.
  const tests = [...document.querySelectorAll("details.test")];
  const search = document.getElementById("search");
  const chips = [...document.querySelectorAll("[data-chip]")];
  const where = document.getElementById("where");
  const summary = where?.textContent;
  const failing = () => tests.filter((test) => test.dataset.fails !== undefined && !test.hidden);
  let verdict = "";
  const filter = () => {
    const words = (search?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const shown = new Set();
    for (const test of tests) {
      const text = test.querySelector("summary").textContent.toLowerCase();
      const match = (!verdict || test.dataset.verdict === verdict) && words.every((word) => text.includes(word));
      test.hidden = !match;
      if (match) shown.add(test.id);
    }
    for (const row of document.querySelectorAll("tr[data-test]")) row.hidden = !shown.has(row.dataset.test);
    for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.chip === verdict));
    document.getElementById("nothing").hidden = shown.size > 0;
    const state = new URLSearchParams([["verdict", verdict], ["search", search?.value ?? ""]].filter(([, value]) => value));
    return { state: String(state), count: shown.size };
  };
  const filterAndKeep = () => {
    const { state, count } = filter();
    const isState = /^#(verdict|search)=/.test(location.hash);
    if (state || isState) history.replaceState(null, "", state ? `#${state}` : location.pathname + location.search);
    say(`Tests shown: ${count} of ${tests.length}.`);
  };
  const restore = () => {
    if (!search || !/^#(verdict|search)=/.test(location.hash)) return false;
    const state = new URLSearchParams(location.hash.slice(1));
    verdict = chips.some((chip) => chip.dataset.chip === state.get("verdict")) ? state.get("verdict") : "";
    search.value = state.get("search") ?? "";
    filter();
    return true;
  };
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      verdict = verdict === chip.dataset.chip ? "" : chip.dataset.chip;
      if (!chip.classList.contains("chip")) search.value = "";
      filterAndKeep();
    });
  }
  search?.addEventListener("input", filterAndKeep);

  // The failing test that is read: the last one that begins above or at the top of the window.
  const current = () => failing().findLastIndex((test) => test.getBoundingClientRect().top < 120);
  const goTo = (test) => {
    test.open = true;
    land(test);
    test.querySelector("summary").focus({ preventScroll: true });
  };
  for (const button of document.querySelectorAll("[data-jump]")) {
    button.addEventListener("click", () => {
      const all = failing();
      if (!all.length) return;
      const top = parseFloat(getComputedStyle(root).scrollPaddingTop) + 4;
      const step = Number(button.dataset.jump);
      const places = all.map((test) => test.getBoundingClientRect().top);
      const next = step > 0 ? places.findIndex((place) => place > top) : places.findLastIndex((place) => place < top - 8);
      goTo(all[next < 0 ? (step > 0 ? 0 : all.length - 1) : next]);
    });
  }
  let waiting = false;
  const tellWhere = () => {
    waiting = false;
    const place = current();
    const all = failing();
    const test = all[place];
    const isIn = test && test.getBoundingClientRect().bottom > 0;
    where.textContent = isIn ? `${place + 1} of ${all.length} failing: ${test.querySelector(".id").textContent}` : summary;
  };
  if (where) window.addEventListener("scroll", () => { if (!waiting) { waiting = true; requestAnimationFrame(tellWhere); } }, { passive: true });

  // A link lands on its test, also where what is above it changes its height while charts are drawn: until the reader
  // scrolls, the test is brought back.
  let hold = null;
  const land = (target) => {
    hold?.disconnect();
    target.scrollIntoView({ behavior: "instant" });
    hold = new ResizeObserver(() => target.scrollIntoView({ behavior: "instant" }));
    hold.observe(document.body);
    setTimeout(release, 5000);
  };
  const release = () => { hold?.disconnect(); hold = null; };
  for (const event of ["wheel", "touchmove", "pointerdown", "keydown"]) window.addEventListener(event, release, { passive: true });
  const openTarget = () => {
    if (restore() || location.hash.length < 2) return;
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!(target instanceof HTMLDetailsElement)) return;
    const test = target.closest("details.test");
    if (test) {
      test.hidden = false;
      test.open = true;
    }
    target.open = true;
    land(target);
  };
  window.addEventListener("hashchange", openTarget);
  perfdl.openTarget = openTarget;
  if (!document.getElementById("perfdl-names")) openTarget();

  // Paper shows what the reader has opened, and of a short report all tests.
  let closed = [];
  window.addEventListener("beforeprint", () => {
    const folded = [...document.querySelectorAll("details.test:not([open])")];
    closed = folded.length > 60 ? [] : folded;
    for (const details of closed) details.open = true;
    for (const prepare of perfdl.onPrint) prepare();
  });
  window.addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
})();
