"use strict";
// The report. Everything from run folders enters the page as text, never as markup.
(() => {
  const { chart, choice, element, endsEarly, mark, number, pageData, spansDecades, swatch } = fedspam;
  const data = pageData();
  const page = document.getElementById("page");
  page.replaceChildren();

  const names = [...new Set(data.series.map((series) => series.name))];
  const numbers = new Map(names.map((name, i) => [name, i]));
  const numberOf = (name) => numbers.get(name) ?? -1;
  const tables = fedspam.tables(data, numberOf);
  const LEGEND = 24; // names of a long legend that are shown at once
  const hidden = new Set();
  const BOUNDS = Symbol("bounds"); // in the legend beside the names, which may be any text
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

  const isShown = (series, measure) => !hidden.has(series.name) && measure in series.paid && tables.isOf(series, measure);

  function line(series, curve, measure, more = {}) {
    return { name: series.name, number: numberOf(series.name), x: interpolated(series.paid[measure], places(curve)), y: curve.value,
      low: curve.low, high: curve.high, ...more };
  }

  const percent = (share) => (share === null || share === undefined ? "–" : `${number(100 * share)} %`);
  const places = (curve) => (Array.isArray(curve.at) ? curve.at : (curve.at = curve.value.map((_, i) => curve.at.from + i * curve.at.step)));

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

  function tile(label, value, words = false, look = "") {
    return element("div", { class: `tile${words ? " words" : ""} ${look}` }, element("span", {}, label), element("b", {}, value));
  }

  function ending(opening) {
    if (data.series.length > 1) {
      page.append(tables.finalNumbers(opening));
      return;
    }
    const [series] = data.series;
    const tiles = element("section", { class: "tiles", "aria-label": "At the end" });
    for (const [name, { value, text }] of tables.atTheEnd(series)) tiles.append(tile(name, text(value)));
    if (series.certificates) tiles.append(tile("solutions certified", percent(series.certificates.share)));
    const { status, look } = data.sources[series.source];
    tiles.append(tile("status", status, true, look));
    page.append(tiles);
  }

  // --- the curves ---

  /** Whether a logarithmic axis suits a metric. */
  function wide(metric) {
    const rising = data.metrics.find(({ name }) => name === metric).rises;
    return !rising && spansDecades(data.series.flatMap(({ metrics, bounds }) => [metrics, bounds].flatMap((curves) => curves[metric]?.value ?? [])));
  }

  function curves(opening) {
    if (!data.metrics.length) {
      page.append(element("section", { class: "card" }, element("h2", {}, "Curves"),
        element("p", { class: "lead" }, "This run recorded no metrics: give simulate a probe, such as one that returns the loss.")));
      return;
    }
    const card = element("section", { class: "card", id: "curves" });
    const host = element("div");
    const state = { metric: opening, measure: "rounds", logX: null, logY: wide(opening) }; // logX: null until it is chosen
    const scales = [{ value: "log", label: "log" }, { value: "linear", label: "linear" }];
    const known = (measure) => data.series.some((series) => measure in series.paid);
    let drawing = null;
    const scale = (name, key) => choice(name, scales, "linear", (value) => { state[key] = value === "log"; draw(); });
    const [yScale, xScale] = [scale("vertical axis", "logY"), scale("horizontal scale", "logX")];

    const draw = () => {
      const lines = [];
      for (const series of data.series) {
        if (!isShown(series, state.measure) || !(state.metric in series.metrics)) continue;
        lines.push(line(series, series.metrics[state.metric], state.measure));
        const bound = series.bounds[state.metric];
        if (bound && !hidden.has(BOUNDS)) lines.push(line(series, bound, state.measure, { name: `${series.name}, bound`, bound: true }));
      }
      const logX = state.logX ?? endsEarly(lines.filter((one) => !one.bound), state.logY);
      yScale.press(state.logY ? "log" : "linear");
      xScale.press(logX ? "log" : "linear");
      drawing.draw({
        x: { label: data.measures[state.measure], log: logX, measure: state.measure, unit: units[state.measure] },
        y: { label: state.metric, log: state.logY }, lines, empty: "all curves are hidden: press a name below",
      });
    };

    const shown = element("div", { class: "bar" });
    if (data.metrics.length > 1) {
      shown.append(choice("metric", data.metrics.map(({ name }) => ({ value: name, label: name })), state.metric, (value) => {
        state.metric = value;
        state.logY = wide(value);
        title.textContent = value;
        draw();
        document.dispatchEvent(new CustomEvent("metric", { detail: value }));
      }));
    }
    shown.append(yScale);
    const against = element("div", { class: "bar" }, element("span", { class: "name" }, "against"),
      choice("horizontal axis", Object.entries(data.measures).map(([value, label]) => ({
        value, label, disabled: !known(value), title: known(value) ? null : "not recorded in these folders",
      })), state.measure, (value) => {
        state.measure = value;
        draw();
        document.dispatchEvent(new CustomEvent("measure", { detail: value }));
      }), xScale);

    const legend = element("div", { class: "legend", role: "group", "aria-label": "series" });
    const entries = names.map((name) => ({ key: name, number: numberOf(name), bound: false }));
    if (data.series.some((series) => Object.keys(series.bounds).length)) entries.push({ key: BOUNDS, number: null, bound: true });
    const entry = ({ key, number: style, bound }) => {
      const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(style, bound), bound ? "theoretical bounds" : key);
      button.addEventListener("click", () => {
        const off = !hidden.delete(key) && hidden.add(key);
        button.setAttribute("aria-pressed", String(!off));
        draw();
      });
      return button;
    };
    const long = entries.length > LEGEND + 6;
    legend.append(...(long ? entries.slice(0, LEGEND) : entries).map(entry));
    if (long) {
      const more = element("button", { type: "button" }, `Show all ${entries.length}`);
      more.addEventListener("click", () => more.replaceWith(...entries.slice(LEGEND).map(entry)));
      legend.append(more);
    }
    const title = element("h2", {}, state.metric);
    card.append(title, shown, host, against, legend);
    page.append(card);
    drawing = chart(host, "curves of all series");
    draw();
  }

  // --- certificates, clients, details ---

  function certificates() {
    const with_ = data.series.filter((series) => series.certificates);
    if (!with_.length) return null;
    const card = element("section", { class: "card", id: "certificates" }, element("h2", {}, "Certificates"),
      element("p", { class: "lead" }, "Local solutions that passed the test of their solver. Those that also pass the relative test of the theorems add no error floor."));
    const row = (series) => {
      const { share, passed, floor, steps } = series.certificates;
      const fill = element("i");
      fill.style.width = `${100 * share}%`;
      fill.style.background = fedspam.color(numberOf(series.name));
      return element("tr", {}, element("td", {}, series.name), element("td", {}, element("div", { class: "meter" }, fill)),
        element("td", {}, percent(share)), element("td", {}, percent(passed)), element("td", {}, number(floor, 2)), element("td", {}, number(steps)));
    };
    card.append(tables.table("certificates", ["", "", "certified", "relative test", "error floor 5ε²", "local steps"], with_.length,
      (all) => (all ? with_ : with_.slice(0, LEGEND)).map(row)));
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
        lines.push({ name: `${percents[i]} to ${percents.at(-1 - i)} %`, number: numberOf(series.name), x: places(low), y: high.value, low: low.value, high: high.value,
          bandOnly: true, silent: true, opacity: 0.18 });
      }
      for (const percent of percents) {
        const middle = percent === percents[Math.floor(percents.length / 2)];
        lines.push({ name: `${percent} %`, number: numberOf(series.name), x: places(levels[percent]), y: levels[percent].value, bandOnly: !middle });
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

  head();
  // where nothing else is given, first a metric that falls by orders of magnitude
  const opening = data.opening ?? data.metrics.map(({ name }) => name).find(wide) ?? data.metrics[0]?.name;
  ending(opening);
  curves(opening);
  page.append(...[tables.targets(opening), tables.tested()].filter(Boolean));
  const cards = [certificates(), clients(), details()].filter(Boolean);
  if (cards.length) page.append(element("div", { class: "pair" }, ...cards));
  const differing = data.sources.length > 1 ? "rows that differ are shaded" : "everything that determines the results";
  page.append(...[
    tables.again(),
    tables.facts("Configuration", differing, data.configuration, "configuration"),
    tables.facts("Manifest", "versions, device and dates", data.manifest, "manifest"),
    element("footer", {}, "Made by fedspam. This file holds all its data and loads nothing else."),
  ].filter(Boolean));
})();
