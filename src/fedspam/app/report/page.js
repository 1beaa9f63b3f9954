"use strict";
// The report. Everything from run folders enters the page as text, never as markup.
(() => {
  const { amount, chart, choice, copyButton, element, mark, number, pageData, range, shape, spansDecades, swatch } = fedspam;
  const data = pageData();
  const page = document.getElementById("page");
  page.replaceChildren();

  const names = [...new Set(data.series.map((series) => series.name))];
  const numberOf = (name) => names.indexOf(name);
  const hidden = new Set();
  const units = { rounds: "rounds", bytes_up: "up", bytes: "in total", gradients: "gradients", seconds: "" };

  function interpolated(paid, at) {
    // both are sorted: one pass
    let piece = 0;
    return at.map((wanted) => {
      while (piece < paid.at.length - 2 && paid.at[piece + 1] < wanted) piece += 1;
      const [a, b] = [paid.at[piece], paid.at[Math.min(piece + 1, paid.at.length - 1)]];
      const [u, v] = [paid.amount[piece], paid.amount[Math.min(piece + 1, paid.at.length - 1)]];
      if (u === null || v === null) return null;
      return b > a ? u + ((wanted - a) / (b - a)) * (v - u) : u;
    });
  }

  const isShown = (series, measure) => !hidden.has(series.name) && measure in series.paid && (series.only === null || series.only.includes(measure));

  function line(series, curve, measure, more = {}) {
    return { name: series.name, number: numberOf(series.name), x: interpolated(series.paid[measure], curve.at), y: curve.value,
      low: curve.low, high: curve.high, ...more };
  }

  const percent = (share) => (share === null || share === undefined ? "–" : `${number(100 * share)} %`);
  const last = (values) => values.findLast((value) => value !== null) ?? null;

  // --- head ---

  function head() {
    const fact = (name) => [...new Set((data.manifest.find((row) => row.name === name)?.values ?? []).filter(Boolean))].join(", ");
    const made = (fact("started") || fact("finished")).split(", ").sort()[0].slice(0, 16).replace("T", " ");
    const count = data.sources.length;
    const parts = [count > 1 ? `${count} folders` : data.sources[0].folder, fact("fedspam") && `fedspam ${fact("fedspam")}`, fact("device"), made];
    page.append(element("header", {},
      element("div", { class: "brand" }, mark(), element("span", {}, "fedspam report")),
      element("h1", {}, data.title),
      element("p", { class: "lead" }, parts.filter(Boolean).join(" · "))));
    for (const note of new Set(data.sources.flatMap((source) => source.notes))) {
      page.append(element("p", { class: "lead" }, note));
    }
  }

  function tile(label, value, words = false, more = "") {
    return element("div", { class: `tile${words ? " words" : ""}${more}` }, element("span", {}, label), element("b", {}, value));
  }

  function ending() {
    if (data.series.length === 1) {
      const [series] = data.series;
      const tiles = element("section", { class: "tiles", "aria-label": "At the end" });
      for (const [name, curve] of Object.entries(series.metrics).slice(0, 3)) tiles.append(tile(`${name}, at the end`, number(last(curve.value))));
      for (const [measure, paid] of Object.entries(series.paid)) {
        tiles.append(tile(data.measures[measure], amount(paid.amount.at(-1), measure)));
      }
      if (series.certificates) tiles.append(tile("solutions certified", percent(series.certificates.share)));
      const { status } = data.sources[series.source];
      tiles.append(tile("status", status, true, status === "completed" ? "" : " stopped"));
      page.append(tiles);
      return;
    }
    const stopped = data.sources.filter((source) => source.status !== "completed");
    for (const source of stopped) page.append(element("p", { class: "lead stopped" }, `${source.folder}: ${source.status}`));
  }

  // --- the curves ---

  function curves() {
    if (!data.metrics.length) {
      page.append(element("section", { class: "card" }, element("h2", {}, "Curves"),
        element("p", { class: "lead" }, "This run recorded no metrics: give simulate a probe, such as one that returns the loss.")));
      return;
    }
    const card = element("section", { class: "card", id: "curves" });
    const host = element("div");
    const state = { metric: data.metrics[0].name, measure: "rounds", logX: false, logY: true };
    const scales = [{ value: "log", label: "log" }, { value: "linear", label: "linear" }];
    const known = (measure) => data.series.some((series) => measure in series.paid);
    const wide = () => {
      const rising = data.metrics.find(({ name }) => name === state.metric).rises;
      return !rising && spansDecades(data.series.flatMap(({ metrics, bounds }) => [metrics, bounds].flatMap((curves) => curves[state.metric]?.value ?? [])));
    };
    // first a metric with a bound, else one that falls by orders of magnitude
    const bounded = data.metrics.find(({ name }) => data.series.some((series) => name in series.bounds));
    state.metric = bounded?.name ?? data.metrics.map(({ name }) => name).find((name) => { state.metric = name; return wide(); }) ?? data.metrics[0].name;
    state.logY = wide();
    let drawing = null;
    let yChoice = null;

    const draw = () => {
      const lines = [];
      for (const series of data.series) {
        if (!isShown(series, state.measure) || !(state.metric in series.metrics)) continue;
        lines.push(line(series, series.metrics[state.metric], state.measure));
        const bound = series.bounds[state.metric];
        if (bound && !hidden.has("bounds")) lines.push(line(series, bound, state.measure, { name: `${series.name}, bound`, bound: true }));
      }
      drawing.draw({
        x: { label: data.measures[state.measure], log: state.logX, measure: state.measure, unit: units[state.measure] },
        y: { label: state.metric, log: state.logY }, lines, empty: "all curves are hidden: press a name below",
      });
    };

    const yScale = () => choice("vertical axis", scales,
      state.logY ? "log" : "linear", (value) => { state.logY = value === "log"; draw(); });
    const shown = element("div", { class: "bar" });
    if (data.metrics.length > 1) {
      shown.append(choice("metric", data.metrics.map(({ name }) => ({ value: name, label: name })), state.metric, (value) => {
        state.metric = value;
        state.logY = wide();
        const fresh = yScale();
        yChoice.replaceWith(fresh);
        yChoice = fresh;
        title.textContent = value;
        draw();
        document.dispatchEvent(new CustomEvent("metric", { detail: value }));
      }));
    }
    yChoice = yScale();
    shown.append(yChoice);
    const against = element("div", { class: "bar" }, element("span", { class: "name" }, "against"),
      choice("horizontal axis", Object.entries(data.measures).map(([value, label]) => ({
        value, label, disabled: !known(value), title: known(value) ? null : "not recorded in these folders",
      })), state.measure, (value) => { state.measure = value; draw(); }),
      choice("horizontal scale", scales, "linear", (value) => { state.logX = value === "log"; draw(); }));

    const legend = element("div", { class: "legend", role: "group", "aria-label": "series" });
    const entries = names.map((name) => ({ key: name, number: numberOf(name), bound: false }));
    if (data.series.some((series) => Object.keys(series.bounds).length)) entries.push({ key: "bounds", number: 7, bound: true });
    for (const { key, number: style, bound } of entries) {
      const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(style, bound), bound ? "theoretical bounds" : key);
      button.addEventListener("click", () => {
        const off = !hidden.delete(key) && hidden.add(key);
        button.setAttribute("aria-pressed", String(!off));
        draw();
      });
      legend.append(button);
    }
    const title = element("h2", {}, state.metric);
    card.append(title, shown, host, against, legend);
    page.append(card);
    drawing = chart(host, "curves of all series");
    draw();
    return state.metric;
  }

  // --- costs ---

  function targets(first) {
    if (!data.targets.length) return;
    const known = [...new Set(data.targets.map((cell) => cell.metric))];
    const measures = Object.keys(data.measures).filter((measure) => data.targets.some((cell) => cell.measure === measure));
    const card = element("section", { class: "card", id: "targets" }, element("h2", {}, "Cost to reach a target"));
    const body = element("tbody");
    const table = element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, ""), ...measures.map((m) => element("th", {}, data.measures[m])))), body);
    card.append(element("p", { class: "lead" }, "A run arrives at the first value at the target from which ten values are there in mean square."), element("div", { class: "scroll" }, table));
    page.append(card);
    const fill = (metric) => fillTargets(body, measures, data.targets.filter((cell) => cell.metric === metric));
    fill(known.includes(first) ? first : known[0]);
    document.addEventListener("metric", ({ detail }) => { if (known.includes(detail)) fill(detail); });
  }

  function fillTargets(body, measures, shown) {
    body.replaceChildren();
    const groups = new Map();
    for (const cell of shown) {
      const key = JSON.stringify([cell.metric, cell.target]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(cell);
    }
    for (const cells of groups.values()) {
      const best = Object.fromEntries(measures.map((m) => [m, range(cells.filter((c) => c.measure === m && c.paid !== null).map((c) => c.paid))[0]]));
      const many = new Set(cells.map((cell) => cell.series)).size > 1;
      body.append(element("tr", { class: "group" }, element("td", { colspan: measures.length + 1 }, `until ${cells[0].metric} ${number(cells[0].target)}`)));
      for (const name of new Set(cells.map((cell) => cell.series))) {
        const row = element("tr", {}, element("td", {}, element("span", { class: "name-cell" }, swatch(Math.max(0, numberOf(name))), element("span", {}, name))));
        for (const measure of measures) {
          const cell = cells.find((one) => one.series === name && one.measure === measure);
          const paid = cell?.paid ?? null;
          const around = cell && cell.low !== null && cell.high !== null && cell.low < cell.high ? ` [${amount(cell.low, measure)}, ${amount(cell.high, measure)}]` : "";
          row.append(element("td", { class: paid === null ? "none" : many && paid === best[measure] ? "best" : "" },
            paid === null ? (cell ? "not reached" : "–") : amount(paid, measure), around ? element("small", {}, around) : null));
        }
        body.append(row);
      }
    }
  }

  // --- certificates, clients, details ---

  function certificates() {
    const with_ = data.series.filter((series) => series.certificates);
    if (!with_.length) return null;
    const card = element("section", { class: "card", id: "certificates" }, element("h2", {}, "Certificates"),
      element("p", { class: "lead" }, "Local solutions that passed the test of their solver. Those that also pass the relative test of the theorems add no error floor."));
    const body = element("tbody");
    for (const series of with_) {
      const { share, passed, floor, steps } = series.certificates;
      const fill = element("i");
      fill.style.width = `${100 * share}%`;
      fill.style.background = fedspam.color(numberOf(series.name));
      body.append(element("tr", {}, element("td", {}, series.name), element("td", {}, element("div", { class: "meter" }, fill)),
        element("td", {}, percent(share)), element("td", {}, percent(passed)), element("td", {}, number(floor, 2)), element("td", {}, number(steps))));
    }
    card.append(element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {},
      ...["", "", "certified", "relative test", "error floor 5ε²", "local steps"].map((label) => element("th", {}, label)))), body)));
    const host = element("div", { class: "low" });
    card.append(host);
    const drawing = chart(host, "share of certified solutions along the rounds");
    queueMicrotask(() => drawing.draw({
      x: { label: "rounds", measure: "rounds", unit: "rounds" }, y: { label: "share", range: [0, 1.02] },
      lines: with_.map((series) => line(series, series.certificates.along, "rounds")),
    }));
    return card;
  }

  function clients() {
    const with_ = data.series.flatMap((series) => Object.entries(series.clients).map(([metric, levels]) => ({ series, metric, levels })));
    if (!with_.length) return null;
    const card = element("section", { class: "card", id: "clients" }, element("h2", {}, "Clients"));
    const host = element("div", { class: "low" });
    const note = element("p", { class: "lead" });
    let drawing = null;
    const draw = ({ series, metric, levels }) => {
      const percents = Object.keys(levels).map(Number).sort((a, b) => a - b);
      const lines = [];
      for (let i = 0; i < Math.floor(percents.length / 2); i += 1) {
        const [low, high] = [levels[percents[i]], levels[percents.at(-1 - i)]];
        lines.push({ name: `${percents[i]} to ${percents.at(-1 - i)} %`, number: numberOf(series.name), x: low.at, y: high.value, low: low.value, high: high.value,
          bandOnly: true, silent: true, opacity: 0.18 });
      }
      for (const percent of percents) {
        const middle = percent === percents[Math.floor(percents.length / 2)];
        lines.push({ name: `${percent} %`, number: numberOf(series.name), x: levels[percent].at, y: levels[percent].value, bandOnly: !middle });
      }
      const log = spansDecades(Object.values(levels).flatMap((curve) => curve.value));
      note.textContent = `${metric} over the clients of ${series.name}: percentiles ${percents.join(", ")}`;
      drawing.draw({ x: { label: "rounds", measure: "rounds", unit: "rounds" }, y: { label: metric, log }, lines });
    };
    if (with_.length > 1) {
      const select = element("select", { "aria-label": "clients of" }, ...with_.map(({ series, metric }, i) => element("option", { value: i }, `${metric} · ${series.name}`)));
      select.addEventListener("change", () => draw(with_[Number(select.value)]));
      card.append(element("div", { class: "bar" }, select));
    }
    card.append(note, host);
    drawing = chart(host, "percentiles over clients");
    queueMicrotask(() => draw(with_[0]));
    return card;
  }

  function details() {
    // what the method reports comes before the counts of its exchanges
    const all = [...new Set(data.series.flatMap((series) => Object.keys(series.details)))].sort((a, b) => a.includes(".") - b.includes("."));
    if (!all.length) return null;
    const card = element("section", { class: "card", id: "details" }, element("h2", {}, "Per round"));
    const host = element("div", { class: "low" });
    const select = element("select", { "aria-label": "quantity" }, ...all.map((name) => element("option", { value: name }, name)));
    const draw = () => {
      const lines = data.series.filter((series) => select.value in series.details).map((series) => line(series, series.details[select.value], "rounds"));
      const log = spansDecades(lines.flatMap((one) => one.y));
      drawing.draw({ x: { label: "rounds", measure: "rounds", unit: "rounds" }, y: { label: select.value, log }, lines });
    };
    select.addEventListener("change", draw);
    card.append(element("div", { class: "bar" }, element("span", { class: "name" }, "quantity"), select), host);
    const drawing = chart(host, "quantities that the method reported per round");
    queueMicrotask(draw);
    return card;
  }

  // --- what was run ---

  function facts(title, note, rows, id) {
    if (!rows.length) return;
    const several = data.sources.length > 1;
    const body = element("tbody");
    for (const row of rows) {
      body.append(element("tr", { class: several && row.differs ? "differs" : "" }, element("td", {}, row.name),
        ...row.values.map((value) => element("td", {}, value ?? "–"))));
    }
    const top = several ? element("thead", {}, element("tr", {}, element("th", {}, ""), ...data.sources.map((source) => element("th", {}, source.folder)))) : null;
    page.append(element("details", { class: "card", id }, element("summary", {}, title, element("small", {}, note)),
      element("div", { class: "scroll" }, element("table", { class: "facts" }, top, body))));
  }

  function again() {
    const card = element("section", { class: "card", id: "again" }, element("h2", {}, "Run it again"));
    const step = ({ what, code }) => card.append(element("p", { class: "step" }, what),
      element("div", { class: "code" }, element("pre", { tabindex: "0" }, code), copyButton(code)));
    const [first, ...others] = data.sources.map((source) => source.again.map((one) => JSON.stringify(one)));
    // steps that all folders share are shown once
    const same = others.length ? first.findIndex((one, i) => others.some((other) => other[i] !== one)) : -1;
    const common = same < 0 ? first.length : same;
    first.slice(0, common).forEach((one) => step(JSON.parse(one)));
    for (const source of data.sources) {
      const own = source.again.slice(common);
      if (data.sources.length > 1 && own.length) card.append(element("h3", { class: "step" }, source.folder));
      own.forEach(step);
    }
    page.append(card);
  }

  head();
  ending();
  targets(curves());
  const cards = [certificates(), clients(), details()].filter(Boolean);
  if (cards.length) page.append(element("div", { class: "pair" }, ...cards));
  again();
  const differing = data.sources.length > 1 ? "rows that differ are shaded" : "everything that determines the results";
  facts("Configuration", differing, data.configuration, "configuration");
  facts("Manifest", "versions, device and dates", data.manifest, "manifest");
  page.append(element("footer", {}, "Made by fedspam. This file holds all its data and loads nothing else."));
})();
